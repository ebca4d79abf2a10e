/* Slots take turns over more bytes than a cache holds, from tile to tile and from operation to operation, and only as
   much of them becomes memory as has come round. Whatever came before, every operation finds its own bytes. */
#include "tests/support/world.h"
#include "backend/comm.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

enum { RANKS = 2, MOST_FLOATS = 1 << 18, MIXED = 150 };
static const size_t KIB = 1024;

static float *floats(void)
{
    float *made = malloc(MOST_FLOATS * sizeof *made);
    REQUIRE(made != NULL);
    return made;
}
static void sum(struct rank *me, float *data, size_t bytes, int call)
{
    size_t count = bytes / sizeof *data;
    for (size_t i = 0; i < count; i++) data[i] = (float)((call + (int)i) % 1000 * (me->rank + 1));
    REQUIRE(tutti_all_reduce(data, data, count, TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL) == TUTTI_OK);
    int ranks = me->size * (me->size + 1) / 2;
    for (size_t i = 0; i < count; i++) REQUIRE(data[i] == (float)((call + (int)i) % 1000 * ranks));
}
/* ---- where they lie ---- */
static void go_round(struct rank *me)
{
    struct executor *x = &me->comm->executor;
    float *data = floats();
    x->turn_bytes = 1024 * KIB;
    for (int call = 0; call < 70; call++) {
        sum(me, data, 64 * KIB, call);
        REQUIRE(x->cut->places == 16);
        REQUIRE(x->turn == (uint32_t)(call / 2 % 16));
        size_t used = (size_t)(call / 2 + 1) * 64 * KIB, twice = 2 * used < x->turn_bytes ? 2 * used : x->turn_bytes;
        REQUIRE(x->reserved[call % 2] >= (used < x->turn_bytes ? used : x->turn_bytes));
        REQUIRE(x->reserved[call % 2] <= twice);
    }
    free(data);
}
static void stay(struct rank *me)
{
    struct executor *x = &me->comm->executor;
    float *data = floats();
    x->turn_bytes = 1024 * KIB;
    for (int call = 0; call < 20; call++) {
        sum(me, data, call % 2 ? 8 : KIB, call);
        REQUIRE(x->turn == 0 && x->reserved[call % 2] <= 64 * KIB);
    }
    REQUIRE(x->reserved[1] == 0);                       /* 8 bytes travel in the line */
    free(data);
}
static void slots_go_round(void **state)
{
    (void)state;
    world_threads(RANKS, NULL, go_round, NULL);
}
static void a_few_lines_stay_where_they_are(void **state)
{
    (void)state;
    world_threads(RANKS, NULL, stay, NULL);
}

/* ---- what is in them ---- */
static void mix(struct rank *me)
{
    static const size_t sizes[] = { 8, 1024, 4096, 5000, 64 << 10, 100000, 300000, MOST_FLOATS * sizeof(float) };
    static const size_t turns[] = { 0, 4096, 100000, 1 << 20, SIZE_MAX };
    float *data = floats();
    uint32_t together = 1;
    for (int call = 0; call < MIXED; call++) {
        if (call % 10 == 0) me->comm->executor.turn_bytes = turns[call / 10 % 5];
        together = together * 1664525u + 1013904223u;
        size_t bytes = sizes[(together >> 16) % (sizeof sizes / sizeof *sizes)];
        for (int again = 0; again < 3; again++) sum(me, data, bytes, call + again);
        const struct executor *x = &me->comm->executor;                /* tiles of one place are of one counter */
        REQUIRE(x->cut->single || x->cut->places % (uint32_t)x->launch.program->plan->slots == 0);
    }
    free(data);
}
static void every_operation_finds_its_own_bytes(void **state)
{
    (void)state;
    for (int size = 2; size <= 3; size++) world_threads(size, NULL, mix, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_go_round),
        cmocka_unit_test(a_few_lines_stay_where_they_are),
        cmocka_unit_test(every_operation_finds_its_own_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
