/* Operations take their slots one behind the other from a ring, of which only the part that was used is allocated.
   Every operation reads its own bytes, whatever ran before. */
#include "backend/engine/comm.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"

#if defined(__SANITIZE_THREAD__)
enum { MIXED = 25 };
#else
enum { MIXED = 100 };
#endif
enum { RANKS = 2, MOST_FLOATS = 1 << 18 };
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
/* ---- places of slots ---- */
static void go_round(struct rank *me)
{
    struct executor *x = &me->comm->executor;
    float *data = floats();
    x->site.ring_bytes = 1024 * KIB;
    size_t end = 0, used = 0, slots = 64 * KIB;
    for (size_t call = 0; call < 100; call++) {
        size_t lap = call * slots / 4 > 3 * slots ? call * slots / 4 : 3 * slots;
        sum(me, data, slots, (int)call);
        REQUIRE(x->run.slots_at == (end + slots > lap || end == x->site.ring_bytes ? 0 : end));
        end = x->run.slots_at + slots;
        if (end > used) used = end;
        REQUIRE(x->ring.reserved[2] >= used && (x->ring.reserved[2] < 2 * used || used == slots));
        /* A barrier takes no slots. */
        REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    }
    REQUIRE(used == x->site.ring_bytes);
    REQUIRE(x->ring.reserved[0] == 0 && x->ring.reserved[1] == 0 && x->ring.reserved[2] == x->site.ring_bytes);
    free(data);
}
static void stay(struct rank *me)
{
    struct executor *x = &me->comm->executor;
    float *data = floats();
    x->site.ring_bytes = 1024 * KIB;
    for (int call = 0; call < 20; call++) {
        sum(me, data, KIB, call);
        size_t first = x->site.ring_bytes + TRACKS * TRACK_BYTES;
        size_t half = (x->site.segment->slot_bytes - first) / 2;
        REQUIRE(x->run.slots_at == first + (size_t)(call % 2) * half);
        REQUIRE(x->ring.reserved[call % 2] == KIB && x->ring.reserved[2] == 0);
    }
    free(data);
}
static void test_slots_go_round_the_ring(void **state)
{
    (void)state;
    world_threads(RANKS, NULL, go_round, NULL);
}
static void test_slots_of_small_operations_have_two_fixed_places(void **state)
{
    (void)state;
    world_threads(RANKS, NULL, stay, NULL);
}

/* ---- contents of slots ---- */
/* slots_at: 1 + the place of each operation's slots, from the first rank that runs it; 0: no rank has run it. */
struct shared { size_t ring_bytes; _Atomic size_t slots_at[3 * MIXED]; };
static bool meet(size_t a, size_t a_bytes, size_t b, size_t b_bytes) { return a < b + b_bytes && b < a + a_bytes; }
static void mix(struct rank *me)
{
    static const size_t sizes[] = { 8, 1024, 4096, 5000, 64 << 10, 100000, 300000, MOST_FLOATS * sizeof(float) };
    struct executor *x = &me->comm->executor;
    struct shared *shared = me->context;
    float *data = floats();
    uint32_t together = 1;
    size_t last = 0, last_bytes = 0;
    x->site.ring_bytes = shared->ring_bytes;
    for (int call = 0; call < MIXED; call++) {
        together = together * 1664525u + 1013904223u;
        size_t bytes = sizes[(together >> 16) % (sizeof sizes / sizeof *sizes)];
        for (int again = 0; again < 3; again++) {
            sum(me, data, bytes, call + again);
            /* Tiles with the same place have the same counter. */
            const struct program_cut *c = x->run.cut;
            REQUIRE(c->is_single_tile || c->tile_slots % (uint32_t)x->launch.program->plan->slots == 0);
            /* The place is the same on all ranks. */
            size_t first_place = 0;
            _Atomic size_t *at = &shared->slots_at[3 * call + again];
            bool first = atomic_compare_exchange_strong(at, &first_place, x->run.slots_at + 1);
            REQUIRE(first || first_place == x->run.slots_at + 1);
            REQUIRE(!meet(last, last_bytes, x->run.slots_at, c->slots_bytes));
            REQUIRE(x->run.slots_at + c->slots_bytes <= x->site.segment->slot_bytes);
            last = x->run.slots_at;
            last_bytes = c->slots_bytes;
        }
    }
    free(data);
}
/* Runs without the tuner, and with another choice every few operations, which has other tiles and shorter laps. */
static void test_slots_of_successive_operations_do_not_overlap(void **state)
{
    (void)state;
    static const size_t rings[] = { 0, 4096, 100000, 1 << 20, SIZE_MAX };
    for (size_t i = 0; i < sizeof rings / sizeof *rings; i++)
        for (int size = 2; size <= 3; size++)
            for (int tries = 0; tries < 2; tries++) {
                struct shared shared = { .ring_bytes = rings[i] };
                world_set("TUTTI_TUNER", tries ? "2" : "0");
                world_threads(size, NULL, mix, &shared);
            }
    world_set("TUTTI_TUNER", "0");
}

/* The segment has too little room for a cache line of staging for each chunk, as with very many ranks. */
static void ask_for_more_than_fits(struct rank *me)
{
    struct executor *x = &me->comm->executor;
    const struct segment *all = x->site.segment;
    struct segment part = *all;
    tutti_request by_name = TUTTI_REQUEST_INIT;
    float *data = floats();
    by_name.algorithm = "read_write";
    by_name.blocking = true;
    part.slot_bytes = TRACKS * TRACK_BYTES + 512;
    x->site.segment = &part;
    REQUIRE(tutti_scatter(data, data + RANKS, 1, TUTTI_FLOAT32, 0, me->comm, &by_name) == TUTTI_UNSUPPORTED);
    REQUIRE(strstr(tutti_get_last_error(), "scatter by algorithm read_write stages"));
    REQUIRE(strstr(tutti_get_last_error(), "choose another algorithm, or none"));
    x->site.segment = all;
    free(data);
}
static void test_staging_that_does_not_fit_is_refused(void **state)
{
    (void)state;
    world_threads(RANKS, NULL, ask_for_more_than_fits, NULL);
}

unit_function test_ring;
int test_ring(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots_go_round_the_ring),
        cmocka_unit_test(test_slots_of_small_operations_have_two_fixed_places),
        cmocka_unit_test(test_slots_of_successive_operations_do_not_overlap),
        cmocka_unit_test(test_staging_that_does_not_fit_is_refused),
    };
    /* With the machine parameters of a slow build tensors would be read instead of staged. */
    setenv("TUTTI_SINGLE_COPY", "0", 1);
    setenv("TUTTI_TUNER", "0", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
