/* Runs ranks as processes with the fake CUDA driver, each with a stream site. */
#pragma once
#include "backend/streams/enqueue.h"
#include "backend/streams/release.h"
#include "tests/unit/fake_cuda/children.h"

enum { RANKS_MOST = 8 };
/* The rank that a process is. */
struct stream_rank {
    int rank, ranks;
    struct stream_site *site;
    const struct layout *layout;
};
typedef void rank_body(struct stream_rank *rank);
/* How ranks run: rank r uses device r % devices. slot_bytes 0: 1 MiB. `settings`: those of the fake, or NULL. */
struct ranks_setup {
    int ranks, devices;
    size_t slot_bytes;
    const char *settings;
};
/* Runs a body in a process for each rank, with a connected site. Returns the first status of a process that is not 0.
   child_said has what they wrote to standard error. */
int ranks_run(const struct ranks_setup *setup, rank_body *body);
/* Asserts that all processes end well. */
void assert_ranks(const struct ranks_setup *setup, rank_body *body);
/* Waits until all ranks have called this function. */
void ranks_meet(const struct stream_rank *rank);
/* Waits until the process of a rank that all have met has ended, and maps nothing any more. */
void rank_await_end(int rank);
/* Closes the site in the order that its owner must keep. */
void rank_close(struct stream_rank *rank);
/* Polls the site once. Returns OK or the failure of the group, as this thread's last error. */
tutti_status site_poll_once(struct stream_site *site);
/* Polls the site once. Returns OK if an operation is done, IN_PROGRESS, or the failure of the group. */
tutti_status site_test_operation(struct stream_site *site, uint64_t number);
/* Waits until an operation is done or fails. */
tutti_status rank_wait(struct stream_rank *rank, uint64_t number);
/* Polls until all streams of the rank have ended, also after a failure. */
void rank_drain(struct stream_rank *rank);
/* Ends the process with an error unless the text of the last error has this text. */
void expect_detail(const char *text);
/* Enqueues an operation, again and again while too many run. */
uint64_t rank_enqueue(struct stream_rank *rank, const struct stream_operation *operation, CUstream stream);
/* Builds a plan of private tensors; the process ends with an error if the algorithm has none. */
void rank_plan(const struct stream_rank *rank, const struct algorithm *algorithm, int root, int slots,
    struct plan *out);
