/* The lists and the memory of a communicator's part for streams. */
#include "backend/engine/stream_comm.h"
#include "backend/base/memory.h"
#include "backend/control/lifetime.h"
#include "backend/engine/comm.h"
#include "backend/engine/error_text.h"
#include "backend/memory/common.h"
#include <stdio.h>
#include <stdlib.h>

/* The limit of the memory of plans. */
enum { STREAM_PLAN_BYTES = 2 << 20 };

/* ---- memory ---- */
/* Holds the processes of the other ranks, so that this rank sees their deaths also after it has left the group. */
static tutti_status stream_comm_hold_peers(struct stream_comm *streams)
{
    const struct group *group = &streams->comm->group;
    struct identity own;
    TRY(peers_acquire(&own));
    streams->holds_peers = true;
    for (int r = 0; r < streams->ranks; r++)
        if (!member_shares_process(&group->members[r], &group->members[group->rank]))
            TRY(peer_acquire(&group->members[r].identity, &group->key, &streams->peers[group_index_of_rank(group, r)]));
    return TUTTI_OK;
}
tutti_status stream_comm_create(tutti_comm *comm, struct stream_comm **out)
{
    int ranks = comm->group.size;
    struct stream_comm *streams = memory_alloc_zeroed(1, sizeof *streams);
    if (!streams) return status_fail(TUTTI_NO_MEMORY, "no memory for the streams of %d ranks", ranks);
    pthread_mutex_init(&streams->call_lock, NULL);
    pthread_mutex_init(&streams->lock, NULL);
    streams->comm = comm;
    streams->rank = group_index_of_rank(&comm->group, comm->group.rank);
    streams->ranks = ranks;
    streams->end = &streams->first;
    atomic_init(&streams->holders, 1);
    streams->plans = plan_cache_create(STREAM_PLAN_BYTES, NULL, NULL);
    streams->peers = memory_alloc_zeroed((size_t)ranks, sizeof *streams->peers);
    bool has_memory = streams->plans && streams->peers;
    tutti_status status = has_memory ? stream_comm_hold_peers(streams)
                                     : status_fail(TUTTI_NO_MEMORY, "no memory for the streams of %d ranks", ranks);
    if (status == TUTTI_OK) {
        *out = streams;
        return TUTTI_OK;
    }
    stream_comm_close(streams);
    stream_comm_release(streams);
    return status;
}
void stream_comm_close(struct stream_comm *streams)
{
    stream_site_destroy(streams->site);
    shared_mapping_leave_at(streams->words);
    for (int r = 0; streams->peers && r < streams->ranks; r++) peer_release(streams->peers[r]);
    if (streams->holds_peers) peers_release();
    plan_cache_destroy(streams->plans);
    free(streams->peers);
}
void stream_comm_release(struct stream_comm *streams)
{
    if (!streams || atomic_fetch_sub(&streams->holders, 1) != 1) return;
    pthread_mutex_destroy(&streams->call_lock);
    pthread_mutex_destroy(&streams->lock);
    free(streams);
}

/* ---- failure ---- */
void stream_comm_fail(struct stream_comm *streams, tutti_status status, const char *format, ...)
{
    struct stream_failure *failure = &streams->failure;
    va_list arguments;
    pthread_mutex_lock(&streams->lock);
    if (!atomic_load(&failure->is_set)) {
        va_start(arguments, format);
        vsnprintf(failure->detail, sizeof failure->detail, format, arguments);
        va_end(arguments);
        failure->status = status;
        atomic_store_explicit(&failure->is_set, 1, memory_order_release);
    }
    pthread_mutex_unlock(&streams->lock);
}

/* ---- the list of open operations ---- */
void stream_comm_append_operation(struct stream_comm *streams, struct operation *op)
{
    op->next = NULL;
    pthread_mutex_lock(&streams->lock);
    *streams->end = op;
    streams->end = &op->next;
    pthread_mutex_unlock(&streams->lock);
}
void stream_comm_remove_first(struct stream_comm *streams)
{
    pthread_mutex_lock(&streams->lock);
    streams->first = streams->first->next;
    if (!streams->first) streams->end = &streams->first;
    pthread_mutex_unlock(&streams->lock);
}
struct operation *stream_comm_get_first(struct stream_comm *streams)
{
    pthread_mutex_lock(&streams->lock);
    struct operation *first = streams->first;
    pthread_mutex_unlock(&streams->lock);
    return first;
}
bool stream_comm_has_work(struct stream_comm *streams)
{
    return atomic_load(&streams->has_call) || stream_comm_get_first(streams);
}
uint64_t stream_comm_find_call_ahead(struct stream_comm *streams, int rank)
{
    uint64_t found = 0;
    /* The site exists as long as this thread has the lock and the state is one of the two. If another thread has the
       lock, its call may be the one that this rank lacks. */
    if (!streams || pthread_mutex_trylock(&streams->call_lock)) return 0;
    int state = atomic_load(&streams->state);
    if (state == STREAMS_OPEN || state == STREAMS_LEAVING) {
        uint64_t next = atomic_load(&streams->site->enqueued) + 1;
        if (stream_site_rank_has_enqueued(streams->site, group_index_of_rank(&streams->comm->group, rank), next))
            found = next;
    }
    pthread_mutex_unlock(&streams->call_lock);
    return found;
}

/* ---- text ---- */
void stream_comm_describe_operation(const tutti_comm *comm, const struct operation *op, char *out, size_t bytes)
{
    char what[160];
    const struct algorithm *algorithm = op->algorithm ? op->algorithm : collectives_table;
    struct declaration call = {
        .operation = (uint32_t)op->collective,
        .dtype = (uint32_t)op->dtype,
        .op = (uint32_t)op->op,
        .root = op->root,
        .count = op->count,
        .bits = op->bits,
        .algorithm = (uint64_t)(algorithm - collectives_table),
    };
    error_text_of_call(&call, what, sizeof what);
    snprintf(out, bytes, "%s, operation %llu on streams of %s", what, (unsigned long long)op->sequence,
        comm->group.name);
}
bool stream_comm_describe_first(struct stream_comm *streams, char *out, size_t bytes)
{
    pthread_mutex_lock(&streams->lock);
    const struct operation *first = streams->first;
    if (first) stream_comm_describe_operation(streams->comm, first, out, bytes);
    pthread_mutex_unlock(&streams->lock);
    bool has_call = !first && atomic_load(&streams->has_call);
    if (has_call) snprintf(out, bytes, "a call on streams of %s", streams->comm->group.name);
    return first || has_call;
}
void stream_comm_list_absent_ranks(const struct stream_comm *streams, uint64_t number, char *out, size_t bytes)
{
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < streams->ranks; i++)
        if (!stream_site_rank_has_enqueued(streams->site, i, number))
            used = error_text_append_rank(out, bytes, used, group_rank_at_index(&streams->comm->group, i));
}
