/* The barrier that reports absent ranks. Each rank sends rank 0 a message and waits for the answer. Rank 0 answers when
   it has the messages of all ranks. At the timeout it reports the missing ranks and aborts the communicator. The abort
   ends its receives, and the waits of the ranks that have arrived. */
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "c_api/call.h"
#include <stdlib.h>
#include <string.h>

/* Other ranks wait longer by this margin, so rank 0 times out first. */
enum { MARGIN_MS = 1000 };
/* The tag of a rank's message to rank 0, and the tag of the answer. */
static const uint32_t arrival_tag = UINT32_MAX - 1, release_tag = UINT32_MAX;

/* Returns twice the timeout, without overflow. */
static int64_t timeout_double(int64_t timeout_ms)
{
    return timeout_ms > INT64_MAX / 4 ? INT64_MAX / 2 : 2 * timeout_ms;
}
/* Sends a message of one byte to `peer`, or receives one, and waits for its end. */
static tutti_status barrier_run_message(bool sends, int peer, uint32_t tag, int64_t timeout_ms, tutti_comm *comm)
{
    unsigned char byte = 0;
    tutti_request request = { .struct_size = sizeof request, .timeout_ms = timeout_ms, .blocking = true };
    if (sends) return tutti_send(&byte, 1, TUTTI_UINT8, peer, tag, comm, &request);
    return tutti_recv(&byte, 1, TUTTI_UINT8, peer, tag, comm, &request);
}
/* Does the part of a rank other than 0: sends its message to rank 0, and waits for the answer. */
static tutti_status barrier_arrive(tutti_comm *comm, int64_t timeout_ms)
{
    TRY(barrier_run_message(true, 0, arrival_tag, timeout_ms, comm));
    return barrier_run_message(false, 0, release_tag, timeout_double(timeout_ms) + MARGIN_MS, comm);
}

/* ---- rank 0 ---- */
/* The receives of the ranks' messages. */
struct barrier_arrivals {
    tutti_comm *comm;
    tutti_queue *queue;
    /* Both arrays are indexed by rank. */
    tutti_request *requests;
    unsigned char *bytes;
};
static tutti_status arrivals_init(struct barrier_arrivals *a, tutti_comm *comm)
{
    size_t size = (size_t)comm->group.size;
    *a = (struct barrier_arrivals){ .comm = comm, .requests = memory_alloc_zeroed(size, sizeof *a->requests + 1) };
    if (!a->requests) return status_refuse(TUTTI_NO_MEMORY, "no memory to wait for %zu ranks", size);
    a->bytes = (unsigned char *)(a->requests + size);
    return tutti_queue_create(&a->queue);
}
/* Posts a receive from each rank, with a timeout longer than the barrier's. */
static tutti_status arrivals_post_receives(struct barrier_arrivals *a, int64_t timeout_ms)
{
    for (int r = 1; r < a->comm->group.size; r++) {
        tutti_request *request = &a->requests[r];
        request->struct_size = sizeof *request;
        request->timeout_ms = timeout_double(timeout_ms) + 2 * MARGIN_MS;
        request->queue = a->queue;
        TRY(tutti_recv(&a->bytes[r], 1, TUTTI_UINT8, r, arrival_tag, a->comm, request));
    }
    return TUTTI_OK;
}
/* Waits until all ranks have arrived, and sets missing[r] to false for each rank r that has. TIMEOUT if one has not. */
static tutti_status arrivals_await_all(struct barrier_arrivals *a, int64_t timeout_ms, bool *missing)
{
    int64_t until_ms = clock_deadline(timeout_ms);
    TRY(arrivals_post_receives(a, timeout_ms));
    for (;;) {
        tutti_request *arrived;
        int64_t left_ms = until_ms - clock_ms();
        tutti_status status = tutti_queue_wait(a->queue, left_ms > 0 ? left_ms : 0, &arrived);
        if (status == TUTTI_IN_PROGRESS)
            return status_fail(TUTTI_TIMEOUT, "rank 0 of %s waited %lld ms for the others in a monitored barrier",
                a->comm->group.name, (long long)timeout_ms);
        if (status != TUTTI_OK || !arrived) return status;
        TRY(tutti_test(arrived));
        missing[arrived - a->requests] = false;
    }
}
/* Aborts the communicator after an error or a timeout, takes all requests from the queue, and returns the status. */
static tutti_status arrivals_abort(struct barrier_arrivals *a, tutti_status status)
{
    char detail[STATUS_DETAIL_BYTES];
    tutti_request *ended = a->requests;
    strcpy(detail, status_detail());
    tutti_comm_abort(a->comm);
    while (ended && tutti_queue_wait(a->queue, -1, &ended) == TUTTI_OK) continue;
    return status_repeat(status, detail);
}
/* Sends the answer to all ranks. */
static tutti_status barrier_release(tutti_comm *comm, int64_t timeout_ms)
{
    for (int r = 1; r < comm->group.size; r++) TRY(barrier_run_message(true, r, release_tag, timeout_ms, comm));
    return TUTTI_OK;
}
/* Does the part of rank 0: waits for all ranks, then answers them. After a timeout it aborts the communicator. */
static tutti_status barrier_run_on_root(tutti_comm *comm, int64_t timeout_ms, bool *missing)
{
    struct barrier_arrivals a;
    for (int r = 0; r < comm->group.size; r++) missing[r] = r > 0;
    tutti_status status = arrivals_init(&a, comm);
    if (status == TUTTI_OK) {
        status = arrivals_await_all(&a, timeout_ms, missing);
        if (status != TUTTI_OK) status = arrivals_abort(&a, status);
    }
    tutti_queue_destroy(a.queue);
    free(a.requests);
    return status == TUTTI_OK ? barrier_release(comm, timeout_ms) : status;
}
tutti_status tutti_monitored_barrier(tutti_comm *comm, int64_t timeout_ms, bool *missing)
{
    TRY(call_check_comm(comm));
    if (timeout_ms < 1)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "a monitored barrier needs a timeout of 1 ms or more, not %lld",
            (long long)timeout_ms);
    if (comm->group.rank) return barrier_arrive(comm, timeout_ms);
    if (!missing) return status_refuse(TUTTI_INVALID_ARGUMENT, "rank 0: the array for the missing ranks is NULL");
    return barrier_run_on_root(comm, timeout_ms, missing);
}
