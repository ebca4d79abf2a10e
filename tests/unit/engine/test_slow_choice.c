/* A choice that becomes slow while a program runs is replaced. tuner_run_end is wrapped: after FIRST_SLOW calls, the
   first choice that runs in SETTLED calls in a row takes SLOW_NS longer from then on, on each rank. */
#include "backend/base/clock.h"
#include "backend/engine/comm.h"
#include "backend/engine/tuner_run.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <stdlib.h>
#include <unistd.h>

enum { COUNT = 1 << 18, FIRST_SLOW = 100, MOST_CALLS = 2000, SETTLED = 8, SLOW_NS = 3000000 };
/* The choices that a rank has run. `alike` is the number of its last calls that ran the same choice, whose code is
   `code`. `slow` is the code of the slow choice once `slow_from`, the number of its first slow call, is set. */
struct history { int calls, alike, slow_from; uint32_t code, slow; };
static struct history histories[2];

void __real_tuner_run_end(tutti_comm *comm, struct tuner *tuner);
void __wrap_tuner_run_end(tutti_comm *comm, struct tuner *tuner);
void __wrap_tuner_run_end(tutti_comm *comm, struct tuner *tuner)
{
    struct history *h = &histories[comm->group.rank];
    h->alike = comm->launcher.code == h->code ? h->alike + 1 : 1;
    h->code = comm->launcher.code;
    if (++h->calls >= FIRST_SLOW && !h->slow_from && h->alike >= SETTLED) {
        h->slow_from = h->calls;
        h->slow = h->code;
    }
    bool is_slow = h->slow_from && h->code == h->slow;
    for (int64_t until_ns = clock_ns() + SLOW_NS; is_slow && clock_ns() < until_ns;) {}
    __real_tuner_run_end(comm, tuner);
}
/* Returns true if the rank's last SETTLED calls ran one choice that is not the slow one. */
static bool history_is_replaced(const struct history *h)
{
    return h->slow_from && h->code != h->slow && h->alike >= SETTLED;
}
/* Both ranks stop after the same call, because both run the same choices. */
static void sum_until_replaced(struct rank *me)
{
    float *in = malloc(COUNT * sizeof *in), *out = malloc(COUNT * sizeof *out);
    REQUIRE(in && out);
    for (int i = 0; i < COUNT; i++) in[i] = (float)(me->rank + i % 7);
    while (!history_is_replaced(&histories[me->rank])) {
        REQUIRE(histories[me->rank].calls < MOST_CALLS);
        REQUIRE(tutti_all_reduce(in, out, COUNT, TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL) == TUTTI_OK);
        REQUIRE(out[0] == 1 && out[COUNT - 1] == (float)(1 + 2 * ((COUNT - 1) % 7)));
    }
    free(in);
    free(out);
}
static void test_a_choice_that_becomes_slow_is_replaced(void **state)
{
    (void)state;
    world_set("TUTTI_TUNER", "1");
    world_threads(2, NULL, sum_until_replaced, NULL);
    assert_memory_equal(&histories[0], &histories[1], sizeof histories[0]);
    print_message("replaced after %d calls\n", histories[0].calls - histories[0].slow_from - SETTLED);
}
unit_function test_slow_choice;
int test_slow_choice(void)
{
    /* The tuner rests if ranks share cores. */
    if (sysconf(_SC_NPROCESSORS_ONLN) < 2) return 77;
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_a_choice_that_becomes_slow_is_replaced) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
