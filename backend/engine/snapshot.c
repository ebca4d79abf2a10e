#include "backend/engine/snapshot.h"
#include "backend/base/clock.h"
#include "backend/base/sha256.h"
#include "backend/base/text_buffer.h"
#include "backend/engine/comm.h"
#include "backend/engine/remote_states.h"
#include <string.h>
#include <unistd.h>

enum { SNAPSHOT_FORMAT = 2, ID_BYTES = 8 };

/* ---- one communicator ---- */
/* Appends "name": seconds since that clock_ms(). */
static void text_append_age(struct text_buffer *text, const char *name, int64_t since_ms)
{
    text_append_seconds(text, name, clock_ms() - since_ms);
}
static void text_append_hex(struct text_buffer *text, const unsigned char *from, int bytes)
{
    for (int i = 0; i < bytes; i++) text_append(text, "%02x", from[i]);
}
/* Appends the id of the group, which is equal in all its processes, and no secret. */
static void text_append_group_id(struct text_buffer *text, const struct group *group)
{
    unsigned char hash[SHA256_BYTES];
    struct sha256 sha;
    sha256_init(&sha);
    sha256_add(&sha, group->members[0].token, sizeof group->members[0].token);
    sha256_finish(&sha, hash);
    text_append(text, "\"id\": \"");
    text_append_hex(text, hash, ID_BYTES);
    text_append(text, "\", ");
}
/* Appends all ranks of the group: process, name of the host, and number of the host in the group. */
static void text_append_members(struct text_buffer *text, const struct group *group)
{
    text_append(text, "\"members\": [");
    for (int r = 0; r < group->size; r++) {
        const struct identity *identity = &group->members[r].identity;
        text_append(text, "%s{\"rank\": %d, \"pid\": %llu, \"host\": %d, \"process\": \"", r ? ", " : "", r,
            (unsigned long long)identity->pid, layout_host(group->layout, r));
        text_append_hex(text, identity->nonce, sizeof identity->nonce);
        text_append(text, "\", ");
        text_append_pair(text, "host_name", identity->host, "}");
    }
    text_append(text, "], ");
}
/* Appends the ranks of this host: the number of the last collective that each has called, and its description, and how
   often and how long this rank has waited for it. */
static void text_append_ranks_here(struct text_buffer *text, const tutti_comm *comm)
{
    const struct group *group = &comm->group;
    char call[ERROR_TEXT_BYTES];
    text_append(text, "\"here\": [");
    for (int i = 0; i < group->segment->ranks; i++) {
        struct declaration declaration = { .sequence = 0 };
        bool has_called = declaration_peek_newest(group->segment, i, &declaration);
        bool has_left = atomic_load(&group_control_at_index(group, i)->departed);
        if (has_called) error_text_of_call(&declaration, call, sizeof call);
        text_append(text, "%s{\"rank\": %d, \"calls\": %llu, \"has_left\": %s, ", i ? ", " : "",
            group_rank_at_index(group, i), (unsigned long long)declaration.sequence, has_left ? "true" : "false");
        text_append(text, "\"late_calls\": %llu, ", (unsigned long long)atomic_load(&comm->lateness.ranks[i].calls));
        text_append_seconds(text, "late_s", atomic_load(&comm->lateness.ranks[i].waited_ms));
        text_append(text, ", ");
        text_append_pair(text, "call", has_called ? call : "", "}");
    }
    text_append(text, "], ");
}
/* Appends the error with which a group has failed, or null for an empty text. */
static void text_append_failure(struct text_buffer *text, const char *failure)
{
    if (failure[0]) text_append_pair(text, "failure", failure, "");
    else text_append(text, "\"failure\": null");
}
/* Appends how long ago a rank of another host has told its state, and the state. "place" is null until its program has
   told it. */
static void text_append_remote_state(struct text_buffer *text, const struct remote_state *told)
{
    text_append_age(text, "told_s", told->at_ms);
    text_append(text, ", \"calls\": %llu, ", (unsigned long long)told->state.calls);
    text_append_pair(text, "call", told->state.call, ", ");
    if (told->state.place_is_due) text_append(text, "\"place\": null, ");
    else text_append_pair(text, "place", told->state.place, ", ");
    text_append_pair(text, "waits_in", told->state.waits_in, ", ");
    rank_state_append_open(text, &told->state);
    text_append_failure(text, told->state.failure);
    text_append(text, "}");
}
/* Appends the ranks of other hosts, with their last answers, and asks them for the next ones. */
static void text_append_ranks_elsewhere(struct text_buffer *text, const tutti_comm *comm)
{
    struct remote_states *states = comm->agreement ? agreement_get_states(comm->agreement) : NULL;
    struct remote_state last;
    const char *separator = "";
    text_append(text, "\"elsewhere\": [");
    for (int r = 0; states && r < comm->group.size; r++) {
        if (group_rank_is_here(&comm->group, r)) continue;
        bool has_left = agreement_rank_has_left(comm->agreement, r);
        text_append(text, "%s{\"rank\": %d, \"has_left\": %s, ", separator, r, has_left ? "true" : "false");
        separator = ", ";
        if (remote_states_find(states, r, 0, &last)) text_append_remote_state(text, &last);
        else text_append(text, "\"told_s\": null}");
    }
    text_append(text, "], ");
    if (states) remote_states_ask_all(states);
}
/* Appends what is known of a group that has formed. */
static void text_append_formed_group(struct text_buffer *text, const tutti_comm *comm)
{
    const struct group *group = &comm->group;
    struct rank_state mine;
    rank_state_read(comm, &mine);
    text_append_group_id(text, group);
    text_append_seconds(text, "timeout_s", atomic_load(&comm->timeout_ms));
    text_append(text, ", \"host\": %d, \"calls\": %llu, \"on_streams\": %s, ", group->host,
        (unsigned long long)mine.calls, atomic_load(&comm->streams) ? "true" : "false");
    text_append_members(text, group);
    text_append_ranks_here(text, comm);
    text_append_ranks_elsewhere(text, comm);
    rank_state_append_open(text, &mine);
    text_append_failure(text, mine.failure[0] ? comm->outcome.detail : "");
}
struct snapshot { struct text_buffer text; int groups; };
static void snapshot_append_comm(const tutti_comm *comm, void *context)
{
    struct snapshot *snapshot = context;
    struct text_buffer *text = &snapshot->text;
    const struct group *group = &comm->group;
    bool has_joined = atomic_load_explicit(&comm->entry.has_joined, memory_order_acquire);
    bool is_leaving = atomic_load(&comm->leaves_group);
    text_append(text, "%s{", snapshot->groups++ ? ", " : "");
    text_append_pair(text, "name", group->name, ", ");
    text_append_pair(text, "state", !has_joined ? "joining" : is_leaving ? "leaving" : "joined", ", ");
    text_append(text, "\"rank\": %d, \"ranks\": %d, ", group->rank, group->size);
    text_append_age(text, "exists_s", comm->entry.added_ms);
    if (has_joined) {
        text_append(text, ", ");
        text_append_formed_group(text, comm);
    }
    text_append(text, "}");
}
void snapshot_write_process(char *buffer, size_t capacity, size_t *bytes)
{
    char host[64] = "";
    struct snapshot snapshot = { { buffer, capacity, 0 }, 0 };
    struct text_buffer *text = &snapshot.text;
    gethostname(host, sizeof host - 1);
    text_append(text, "{\"format\": %d, ", SNAPSHOT_FORMAT);
    text_append_pair(text, "version", TUTTI_VERSION, ", ");
    text_append(text, "\"pid\": %lld, ", (long long)getpid());
    text_append_pair(text, "host_name", host, ", \"groups\": [");
    comm_list_visit(snapshot_append_comm, &snapshot);
    text_append(text, "]}");
    *bytes = text->length;
}
