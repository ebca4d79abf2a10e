/* The end of operations: which are done, whether all ranks have declared the same, and how a failure ends the streams
 * of all ranks. Any threads may call these functions, also while another one enqueues. A thread of each rank calls
 * stream_site_poll_group now and then, at least every 50 ms, until the site is destroyed, also if the rank is idle. */
#pragma once
#include "backend/streams/site.h"

/* Compares what ranks have declared, and fails the group if two differ. Returns OK, or the failure of the group. After
   a failure each call releases the streams that wait. Some calls ask the driver whether the device has failed, so they
   may wait while the driver blocks another thread of the program. *rank gets the rank that failed the group, and
   *finder the one that found that. *rank is -1 if there is no failure, or if this call has found that the device has
   failed; only then this thread's last error has the text of the failure. */
tutti_status stream_site_poll_group(struct stream_site *site, int *rank, int *finder);
/* Does what stream_site_poll_group does, without a call of the driver. The failure is this thread's last error. */
tutti_status stream_site_check_group(struct stream_site *site);
/* Fails the group, unless it has failed, without a call of the driver. `rank` is the cause. All streams of all ranks
   that poll end soon after, and the results of operations that were not done are undefined. */
void stream_site_fail_group(struct stream_site *site, tutti_status status, int rank);
/* An operation that two ranks have declared unequally. If only its counts differ, `one` sends other bytes to `other`
   than that rank expects; both may be the same rank. */
struct stream_disagreement {
    uint64_t number;
    int one, other;
    bool is_about_counts;
    uint64_t sent, expected;
};
/* Finds the first one among the operations that any ranks have declared. It serves after a MISMATCH, on any rank, also
   on one that agrees with all others. */
bool stream_site_find_disagreement(const struct stream_site *site, struct stream_disagreement *out);
/* Returns the number of the last operation that is done. */
uint64_t stream_site_read_done_number(const struct stream_site *site);
/* True if the streams have run all operations, also after a failure, so that slots and tensors are free. */
bool stream_site_is_idle(const struct stream_site *site);
/* Returns the number of the last operation that is done and declared by all ranks equally, as the last poll found. */
static inline uint64_t stream_site_get_completed_number(const struct stream_site *site)
{
    return atomic_load(&site->completed);
}
/* True if a rank has begun to enqueue an operation of this rank. */
bool stream_site_rank_has_enqueued(const struct stream_site *site, int rank, uint64_t number);
/* True if the streams of a rank may still use slots of this rank for an operation that this rank has enqueued. */
bool stream_site_rank_uses_slots(const struct stream_site *site, int rank);
