/* A wait ends at the deadline, when the maker is gone, and when a rank gives up joining. */
#include "backend/join/shm_group.h"
#include "backend/base/clock.h"
#include "backend/base/status.h"
#include "backend/join/join_result.h"
#include "backend/processes/peers.h"
#include <stdio.h>
#include <string.h>

enum { SLICE_MS = 50 };

bool shm_group_is_first_of_process(const struct group *group, const struct shm_group *s, int rank)
{
    const int *r = s->ranks;
    while (*r != rank && !member_shares_process(&group->members[*r], &group->members[rank])) r++;
    return *r == rank;
}
tutti_status shm_group_check_cancelled(const struct group *group)
{
    return join_check_cancelled(group->is_cancelled, group->cancel_context, group->rank, group->name);
}
tutti_status shm_group_check_join(const struct group *group)
{
    const struct member *table = group->members;
    struct identity by;
    int rank = group->size, ranks = 0;
    TRY(shm_group_check_cancelled(group));
    if (!peers_join_is_aborted(table[0].token, &by)) return TUTTI_OK;
    for (int r = group->size - 1; r >= 0; r--)
        if (memcmp(table[r].identity.nonce, by.nonce, sizeof by.nonce) == 0) { rank = r; ranks++; }
    /* The notice came from a process outside the group. */
    if (!ranks) return TUTTI_OK;
    return status_fail(TUTTI_PEER_LOST,
        "rank %d%s (process %llu on %.40s) could not join the group and has given up; its own error says why", rank,
        ranks > 1 ? " or another of its process" : "", (unsigned long long)by.pid, by.host);
}
/* Fails with `status` because the descriptor could not be sent to `rank`. The reason is this thread's last error. */
static tutti_status shm_group_fail_send(int rank, tutti_status status)
{
    char why[STATUS_DETAIL_BYTES / 2];
    snprintf(why, sizeof why, "%.500s", status_detail());
    return status_fail(status, "sending the shared memory of the group to rank %d failed: %s", rank, why);
}
tutti_status shm_group_send_descriptor(const struct group *group, const struct shm_group *s,
    const unsigned char token[16], int descriptor)
{
    tutti_status status = TUTTI_OK;
    for (int i = 1; i < s->count && status == TUTTI_OK; i++) {
        struct peer *peer = group->peers[s->ranks[i]];
        if (peer && shm_group_is_first_of_process(group, s, s->ranks[i]))
            status = peer_send_descriptor(peer, token, descriptor);
        if (status != TUTTI_OK) status = shm_group_fail_send(s->ranks[i], status);
    }
    return status;
}
tutti_status shm_group_receive_descriptor(const struct group *group, const struct shm_group *s,
    const unsigned char token[16], int64_t deadline_ms, const char *what, int *descriptor)
{
    const struct peer *maker = group->peers[s->ranks[0]];
    tutti_status status = TUTTI_TIMEOUT;
    bool is_gone = false;
    while (status == TUTTI_TIMEOUT && clock_ms() < deadline_ms && !is_gone) {
        TRY(shm_group_check_join(group));
        /* A maker may have sent the descriptor and ended since, so the descriptor is looked for after this question. */
        is_gone = peer_is_gone(maker);
        int64_t slice_ms = clock_ms() + SLICE_MS;
        status = peers_await_descriptor(token, slice_ms < deadline_ms ? slice_ms : deadline_ms, descriptor);
    }
    if (status != TUTTI_TIMEOUT) return status;
    if (is_gone) return status_fail(TUTTI_PEER_LOST, "rank %d died before it had sent %s", s->ranks[0], what);
    return status_fail(status, "rank %d has not sent %s: it is too slow or stopped", s->ranks[0], what);
}
