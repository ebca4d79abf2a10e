/* A fetch that UCX ends with an error before its call returns, as it does if the connection that announced the message
   has closed: it runs the callback, and still returns a request. The test replaces UCX's function by such a one. */
#include "backend/transports/ucx/library.h"
#include "backend/transports/ucx/ucx.h"
#include "tests/support/unit.h"
#include "tests/unit/transports/contract.h"
#include "tests/unit/transports/ranks_fabric.h"

enum { LARGE = 200000, MESSAGES = 2 };
static int request;
static void (*free_other)(void *);

static void free_request(void *which)
{
    if (which != &request) free_other(which);
}
static ucs_status_ptr_t ends_at_once(ucp_worker_h worker, void *data, void *buffer, size_t count,
    const ucp_request_param_t *parameters)
{
    (void)buffer, (void)count;
    ucx.ucp_am_data_release(worker, data);
    parameters->cb.recv_am(&request, UCS_ERR_CANCELED, 0, parameters->user_data);
    return &request;
}
/* Rank 1 posts its first receive before the message arrives, its second one after. Both fail and write no memory. */
static void nothing_is_fetched(struct rank *me)
{
    struct transfer x[MESSAGES];
    struct piece pieces[MESSAGES];
    unsigned char *data = malloc((size_t)MESSAGES * LARGE);
    memset(data, me->rank ? 0xee : 0x11, (size_t)MESSAGES * LARGE);
    if (me->rank == 1) {
        free_other = ucx.ucp_request_free;
        ucx.ucp_request_free = free_request;
        ucx.ucp_am_recv_data_nbx = ends_at_once;
        rank_recv(me, &x[0], 0, 0, &pieces[0], data, LARGE);
    }
    rank_meet(me);
    for (uint64_t i = 0; i < MESSAGES; i++) {
        if (me->rank == 0) rank_send(me, &x[i], 1, i, &pieces[i], data + i * LARGE, LARGE);
        else if (i > 0) rank_recv(me, &x[i], 0, i, &pieces[i], data + i * LARGE, LARGE);
        rank_await(me, &x[i], me->rank == 0);
    }
    if (me->rank == 1) {
        rank_await(me, x, MESSAGES);
        for (int i = 0; i < MESSAGES; i++) REQUIRE(x[i].state == TRANSFER_FAILED && x[i].status == TUTTI_PEER_LOST);
        for (int i = 0; i < MESSAGES * LARGE; i++) REQUIRE(data[i] == 0xee);
    }
    rank_meet(me);
    free(data);
}
static void test_a_fetch_that_fails_at_once_fails_its_receive(void **state)
{
    (void)state;
    ranks_fabric_processes(&ucx_fabric, 2, POLLS, nothing_is_fetched);
}
unit_function test_ucx_fetch;
int test_ucx_fetch(void)
{
    if (!fabric_is_there("UCX", ucx_describe)) return SKIPPED;
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_a_fetch_that_fails_at_once_fails_its_receive) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
