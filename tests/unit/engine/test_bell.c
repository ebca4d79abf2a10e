/* A rank that yields notices a death in its next turn. If other programs want its core, a yield takes milliseconds, so
   the rank must not wait for the turn in which it checks for failures anyway. */
#include "backend/engine/failure.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>

/* A check for failures is due each 64th turn, so the death falls on each turn between two checks. MOST: the yields that
   are allowed after it. */
enum { ROUNDS = 70, MOST = 4 };
/* The communicator that waits for a peer that does not arrive, or NULL. */
static _Thread_local tutti_comm *waits;
/* The yields until the death is recorded, and those since then. */
static _Thread_local int yields_left, yields_after;
/* Replaces the function of libc. */
int sched_yield(void)
{
    if (waits && yields_left-- == 0) failure_record_lost_rank(waits, 1);
    yields_after += waits && yields_left < -1;
    return (int)syscall(SYS_sched_yield);
}
static void peer_dies_while_the_rank_yields(struct rank *me)
{
    for (int round = 0; round < ROUNDS; round++) {
        tutti_comm *comm;
        int32_t one = 1, sum = 0;
        REQUIRE(tutti_comm_split(me->comm, 0, me->rank, &comm) == TUTTI_OK);
        if (me->rank == 0) {
            yields_left = round;
            yields_after = 0;
            waits = comm;
            REQUIRE(tutti_all_reduce(&one, &sum, 1, TUTTI_INT32, TUTTI_SUM, comm, NULL) == TUTTI_PEER_LOST);
            waits = NULL;
            REQUIRE(yields_after <= MOST);
        }
        world_meet(me);
        REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
    }
}
static void test_death_ends_the_wait_in_the_next_turn(void **state)
{
    (void)state;
    world_set("TUTTI_SPINS", "0");
    world_set("TUTTI_YIELDS", "1000000");
    world_threads(2, NULL, peer_dies_while_the_rank_yields, NULL);
}

unit_function test_bell;
int test_bell(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_death_ends_the_wait_in_the_next_turn) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
