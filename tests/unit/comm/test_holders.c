/* A communicator may have several holders (tutti_comm_retain). One thread destroys it while others are in calls on it,
   or make calls on it afterwards. */
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <pthread.h>
#include <stdatomic.h>

#define REQUIRE_ERROR(text) REQUIRE(strstr(tutti_get_last_error(), text) != NULL)
#define REQUIRE_DESTROYED(call) REQUIRE((call) == TUTTI_ABORTED); REQUIRE_ERROR("was destroyed; make a new one"); \
    REQUIRE(!tutti_last_error_is_refusal())

/* ---- calls on a destroyed communicator ---- */
static void call_a_destroyed_one(struct rank *me)
{
    tutti_comm *comm, *part = NULL;
    tutti_request request = TUTTI_REQUEST_INIT;
    float x = 1;
    REQUIRE(tutti_comm_split(me->comm, 0, 0, &comm) == TUTTI_OK);
    REQUIRE(tutti_comm_retain(comm) == TUTTI_OK && tutti_comm_retain(comm) == TUTTI_OK);
    REQUIRE(tutti_all_reduce(&x, &x, 1, TUTTI_FLOAT32, TUTTI_SUM, comm, NULL) == TUTTI_OK);
    REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
    for (int holder = 0; holder < 2; holder++) {
        REQUIRE_DESTROYED(tutti_all_reduce(&x, &x, 1, TUTTI_FLOAT32, TUTTI_SUM, comm, NULL));
        REQUIRE_DESTROYED(tutti_all_reduce(&x, &x, 1, TUTTI_FLOAT32, TUTTI_SUM, comm, &request));
        REQUIRE_DESTROYED(tutti_recv(&x, 1, TUTTI_FLOAT32, TUTTI_ANY_SOURCE, 0, comm, &request));
        REQUIRE_DESTROYED(tutti_comm_split(comm, 0, 0, &part));
        REQUIRE_DESTROYED(tutti_comm_get_async_error(comm));
        REQUIRE_DESTROYED(tutti_comm_set_timeout(comm, 1000));
        REQUIRE_DESTROYED(tutti_comm_set_algorithm(comm, "allreduce", "ring"));
        /* An abort changes nothing here. */
        REQUIRE(tutti_comm_abort(comm) == TUTTI_OK);
        REQUIRE(tutti_comm_count(comm) == me->size && tutti_comm_user_rank(comm) == me->rank && !part);
        REQUIRE(tutti_comm_release(comm) == TUTTI_OK);
    }
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    REQUIRE(tutti_comm_retain(NULL) == TUTTI_INVALID_ARGUMENT);
    REQUIRE_ERROR("the communicator is NULL");
    REQUIRE(tutti_comm_release(NULL) == TUTTI_OK);
}
static void test_calls_on_a_destroyed_communicator_fail(void **state)
{
    (void)state;
    world_threads(2, NULL, call_a_destroyed_one, NULL);
}
/* Rank 0 releases its communicator until no holder is left, which destroys it. */
static void release_instead(struct rank *me)
{
    tutti_comm *comm;
    float x = 1;
    REQUIRE(tutti_comm_split(me->comm, 0, 0, &comm) == TUTTI_OK);
    REQUIRE(tutti_comm_retain(comm) == TUTTI_OK && tutti_comm_release(comm) == TUTTI_OK);
    REQUIRE(tutti_all_reduce(&x, &x, 1, TUTTI_FLOAT32, TUTTI_SUM, comm, NULL) == TUTTI_OK);
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    if (me->rank == 0) {
        REQUIRE(tutti_comm_release(comm) == TUTTI_OK);
        REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
        return;
    }
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    REQUIRE(tutti_barrier(comm, NULL) == TUTTI_PEER_LOST);
    REQUIRE_ERROR("rank 0 of the group has ended or destroyed its group");
    REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
}
static void test_last_release_leaves_the_group(void **state)
{
    (void)state;
    world_threads(2, NULL, release_instead, NULL);
}

/* ---- a communicator that is destroyed while threads call it ---- */
enum { CALLERS = 3, KINDS = 4, ROUNDS = 40 };
/* A thread that repeats one kind of call (call_once) on a communicator of rank `rank`. */
struct caller { pthread_t thread; tutti_comm *comm; int kind, rank; };
static tutti_status call_once(struct caller *c, tutti_request *request)
{
    float x = 0;
    tutti_comm *part = NULL;
    tutti_status status;
    switch (c->kind) {
    case 0: return tutti_barrier(c->comm, NULL);
    case 1:
        status = tutti_barrier(c->comm, request);
        if (status == TUTTI_OK) tutti_detach(request);
        return status == TUTTI_OK ? tutti_wait(request, 0) : status;
    case 2:
        status = tutti_recv(&x, 1, TUTTI_FLOAT32, TUTTI_ANY_SOURCE, 3, c->comm, request);
        while (status == TUTTI_OK || status == TUTTI_IN_PROGRESS) status = tutti_test(request);
        return status;
    default:
        tutti_comm_set_timeout(c->comm, 20000);
        status = tutti_comm_get_async_error(c->comm);
        return status == TUTTI_OK ? TUTTI_OK : tutti_comm_split(c->comm, 0, 0, &part);
    }
}
static void *call_until_it_ends(void *argument)
{
    struct caller *c = argument;
    tutti_request request = TUTTI_REQUEST_INIT;
    tutti_status status;
    do status = call_once(c, &request);
    while (status == TUTTI_OK);
    REQUIRE(status == TUTTI_ABORTED || status == TUTTI_PEER_LOST);
    for (int more = 0; more < 100; more++) REQUIRE(call_once(c, &request) == status);
    if (c->rank == 0) REQUIRE(tutti_comm_abort(c->comm) == TUTTI_OK);
    REQUIRE(tutti_comm_release(c->comm) == TUTTI_OK);
    return NULL;
}
static void destroy_under_callers(struct rank *me)
{
    for (int round = 0; round < ROUNDS; round++) {
        tutti_comm *comm;
        struct caller callers[CALLERS];
        REQUIRE(tutti_comm_split(me->comm, 0, me->rank, &comm) == TUTTI_OK);
        for (int i = 0; i < CALLERS; i++) {
            callers[i] = (struct caller){ .comm = comm, .kind = (i + round) % KINDS, .rank = me->rank };
            REQUIRE(tutti_comm_retain(comm) == TUTTI_OK);
            REQUIRE(pthread_create(&callers[i].thread, NULL, call_until_it_ends, &callers[i]) == 0);
        }
        sleep_us(round % 7 * 300);
        REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
        for (int i = 0; i < CALLERS; i++) REQUIRE(pthread_join(callers[i].thread, NULL) == 0);
        REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    }
}
static void test_destroying_ends_the_calls_of_other_threads(void **state)
{
    (void)state;
    for (int size = 1; size <= 2; size++) world_threads(size, NULL, destroy_under_callers, NULL);
}
unit_function test_holders;
int test_holders(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_on_a_destroyed_communicator_fail),
        cmocka_unit_test(test_last_release_leaves_the_group),
        cmocka_unit_test(test_destroying_ends_the_calls_of_other_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
