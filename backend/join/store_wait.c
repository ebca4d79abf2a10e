/* A caller that cancels the join ends these waits: between two reads, and between two slices of an election. */
#include "backend/join/store_wait.h"
#include "backend/base/clock.h"
#include "backend/base/status.h"
#include "backend/join/join_result.h"
#include "backend/processes/host_election.h"
#include <string.h>
#include <time.h>

enum {
    /* Limits of the pause between two reads. */
    LEAST_PAUSE_NS = 50000,
    MOST_PAUSE_MS = 200,
    /* After this wait a rank also reads "r0" again. */
    LATE_NS = 20000000,
    /* After this wait for the election of a host, its rank asks again whether the caller has cancelled. */
    SLICE_MS = 200
};

void store_poll_pause(int64_t began_ns, int64_t deadline_ms)
{
    int64_t pause_ns = (clock_ns() - began_ns) / 8, left_ms = deadline_remaining_ms(deadline_ms);
    int64_t most_ns = (left_ms < MOST_PAUSE_MS ? left_ms : MOST_PAUSE_MS) * 1000000;
    pause_ns = pause_ns < LEAST_PAUSE_NS ? LEAST_PAUSE_NS : pause_ns < most_ns ? pause_ns : most_ns;
    nanosleep(&(struct timespec){ 0, pause_ns }, NULL);
}
bool store_wait_is_late(int64_t began_ns) { return clock_ns() - began_ns > LATE_NS; }
tutti_status store_check_cancelled(const tutti_config *config, const struct member *mine)
{
    return join_check_cancelled(config->is_cancelled, config->store.context, config->rank, mine->group);
}

/* ---- the host of this rank ---- */
tutti_status member_set_host_token(const tutti_config *config, const struct member *first, const struct key_id *key,
    int64_t deadline_ms, struct member *out)
{
    if (!out->contact.family) {
        memcpy(out->host_token, first->token, sizeof out->host_token);
        return TUTTI_OK;
    }
    for (;;) {
        int64_t slice_ms = clock_ms() + SLICE_MS;
        bool is_last_slice = !config->is_cancelled || slice_ms >= deadline_ms;
        tutti_status status =
            host_election_join(first->token, key, is_last_slice ? deadline_ms : slice_ms, out->host_token);
        if (status != TUTTI_TIMEOUT || is_last_slice) return status;
        TRY(store_check_cancelled(config, out));
    }
}
void member_release_host_token(const struct member *first, const struct member *mine)
{
    if (mine->contact.family) host_election_leave(first->token);
}
