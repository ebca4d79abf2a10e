#include "backend/engine/remote_states.h"
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/engine/comm.h"
#include <stdlib.h>
#include <string.h>

/* In a group with more pairs of a rank here and a rank elsewhere, one rank of the host asks. */
enum { MOST_PAIRS = 4096 };
_Static_assert(sizeof(struct rank_state) <= CHANNEL_BYTES, "a state fits into a message");
_Static_assert((int)STATE_ANSWER < (int)CHANNEL_TYPES, "the channel has a type for each message");

void remote_states_init(struct remote_states *states, const tutti_comm *comm)
{
    *states = (struct remote_states){ .comm = comm, .lock = PTHREAD_MUTEX_INITIALIZER };
}
void remote_states_finish(struct remote_states *states)
{
    free(states->of_rank);
    pthread_mutex_destroy(&states->lock);
}
void remote_states_ask(struct remote_states *states, int rank)
{
    pthread_mutex_lock(&states->lock);
    if (!states->of_rank)
        states->of_rank = memory_alloc_zeroed((size_t)states->comm->group.size, sizeof *states->of_rank);
    bool has_room = states->of_rank;
    pthread_mutex_unlock(&states->lock);
    if (has_room) channel_send_optional(states->channel, rank, STATE_QUESTION, NULL, 0);
}
void remote_states_ask_all(struct remote_states *states)
{
    const struct group *group = &states->comm->group;
    int here = group->segment->ranks;
    int64_t now_ms = clock_ms();
    if (now_ms - atomic_load(&states->asked_ms) < ASK_AGAIN_MS) return;
    atomic_store(&states->asked_ms, now_ms);
    bool is_first = group_index_of_rank(group, group->rank) == 0;
    if (!is_first && (int64_t)here * (group->size - here) > MOST_PAIRS) return;
    for (int r = 0; r < group->size; r++)
        if (!group_rank_is_here(group, r)) remote_states_ask(states, r);
}
bool remote_states_find(struct remote_states *states, int rank, int64_t since_ms, struct remote_state *out)
{
    pthread_mutex_lock(&states->lock);
    if (states->of_rank) *out = states->of_rank[rank];
    bool has_answered = states->of_rank && out->at_ms > 0 && out->at_ms >= since_ms;
    pthread_mutex_unlock(&states->lock);
    return has_answered;
}
/* A search for a group, other than that of `except`, in which a thread of this process waits, and its name. */
struct waiting_search { const tutti_comm *except; char *name; };
static void waiting_search_visit(const tutti_comm *comm, void *context)
{
    const struct waiting_search *search = context;
    bool is_same_group = strcmp(comm->group.name, search->except->group.name) == 0;
    if (is_same_group || !atomic_load_explicit(&comm->activity.operation, memory_order_relaxed)) return;
    memcpy(search->name, comm->group.name, GROUP_NAME_BYTES);
}
static void remote_states_answer(const struct remote_states *states, int to)
{
    struct rank_state mine;
    if (!atomic_load_explicit(&states->comm->entry.has_joined, memory_order_acquire)) return;
    rank_state_read(states->comm, &mine);
    mine.place_is_due = !snapshot_get_place(mine.place);
    comm_list_visit(waiting_search_visit, &(struct waiting_search){ states->comm, mine.waits_in });
    channel_send_optional(states->channel, to, STATE_ANSWER, &mine, sizeof mine);
}
void remote_states_on_message(struct remote_states *states, int from, unsigned type, const void *bytes, size_t length)
{
    const struct group *group = &states->comm->group;
    struct rank_state state;
    if (from < 0 || from >= group->size || group_rank_is_here(group, from)) return;
    if (type == STATE_QUESTION) { remote_states_answer(states, from); return; }
    if (type != STATE_ANSWER || length != sizeof state) return;
    memcpy(&state, bytes, sizeof state);
    if (!rank_state_check(&state, group->size)) return;
    pthread_mutex_lock(&states->lock);
    if (states->of_rank) states->of_rank[from] = (struct remote_state){ clock_ms(), state };
    pthread_mutex_unlock(&states->lock);
}
