/* The pages of gathered units: they move between addresses with their contents, the pool keeps few of them, and gathers
   of a step cause no page faults. */
#include "include/tutti_zero.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include "zero/gather_pool.h"
#include "zero/pages.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 3 << 20, UNITS = 4, EACH = 256 << 10, FLOATS = EACH / (int)sizeof(float), STEPS = 10, COUNTED = 4 };
/* Steps may fault in one page of so many that are gathered; fresh pages would fault in all. A sanitizer faults in
   memory of its own. */
#ifdef FEW
enum { PAGES_PER_FAULT = 2 };
#else
enum { PAGES_PER_FAULT = 10 };
#endif
/* A kernel without moved pages gathers in another way. */
static void skip_without_moves(void)
{
    if (!pages_can_move()) skip();
}

/* ---- pages ---- */
static void test_moved_pages_keep_their_contents(void **state)
{
    (void)state;
    struct pages pages;
    float *memory, *flat, *alias;
    skip_without_moves();
    assert_int_equal(pages_init(&pages, BYTES), TUTTI_OK);
    assert_int_equal(tutti_mem_alloc((void **)&memory, BYTES), TUTTI_OK);
    assert_int_equal(pages_reserve_range(&pages, BYTES, (void **)&flat), TUTTI_OK);
    assert_int_equal(pages_alias_range(memory, BYTES, flat, (void **)&alias), TUTTI_OK);
    size_t last = BYTES / sizeof *flat - 1;
    for (int round = 1; round < 4; round++) {
        assert_true(isnan(flat[0]) && isnan(flat[last]));
        memory[0] = memory[last] = (float)round;
        assert_int_equal(pages_move_range(memory, alias, flat, BYTES), TUTTI_OK);
        assert_true(flat[0] == (float)round && flat[last] == (float)round);
        flat[last] = (float)-round;
        assert_true(memory[last] == (float)-round && alias[last] == (float)-round);
        assert_int_equal(pages_move_range(memory, flat, alias, BYTES), TUTTI_OK);
        assert_int_equal(pages_decommit_range(&pages, flat, BYTES), TUTTI_OK);
        assert_true(alias[0] == (float)round && memory[last] == (float)-round);
    }
    pages_release_range(flat, BYTES);
    pages_release_range(alias, BYTES);
    assert_int_equal(tutti_mem_free(memory), TUTTI_OK);
    pages_finish(&pages);
}
/* The kernel refuses to move a range that is not wholly mapped, as one that userfaultfd watches in part. */
static void test_pages_that_cannot_move_are_mapped_again(void **state)
{
    (void)state;
    struct pages pages;
    float *memory, *flat, *alias;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), last = BYTES / sizeof *flat - 1;
    skip_without_moves();
    assert_int_equal(pages_init(&pages, BYTES), TUTTI_OK);
    assert_int_equal(tutti_mem_alloc((void **)&memory, BYTES), TUTTI_OK);
    assert_int_equal(pages_reserve_range(&pages, BYTES, (void **)&flat), TUTTI_OK);
    assert_int_equal(pages_alias_range(memory, BYTES, flat, (void **)&alias), TUTTI_OK);
    memory[0] = memory[last] = 3;
    assert_int_equal(munmap((char *)alias + page, page), 0);
    assert_int_equal(pages_move_range(memory, alias, flat, BYTES), TUTTI_OK);
    assert_true(flat[0] == 3 && flat[last] == 3);
    flat[1] = 5;
    assert_true(memory[1] == 5);
    pages_release_range(flat, BYTES);
    pages_release_range(alias, BYTES);
    assert_int_equal(tutti_mem_free(memory), TUTTI_OK);
    pages_finish(&pages);
}

/* ---- the pool ---- */
static struct gather_buffer *pool_take(struct gather_pool *pool, size_t bytes, bool exceeds)
{
    struct gather_buffer *b;
    assert_int_equal(gather_pool_take(pool, bytes, exceeds, &b), TUTTI_OK);
    assert_true(b->bytes >= bytes);
    return b;
}
static void test_pool_keeps_what_was_in_use_at_once(void **state)
{
    (void)state;
    struct gather_pool pool = { NULL };
    skip_without_moves();
    struct gather_buffer *one = pool_take(&pool, EACH, false), *two = pool_take(&pool, EACH, false);
    struct gather_buffer *more = pool_take(&pool, EACH, true);
    assert_int_equal(pool.limit_bytes, 2 * EACH);
    gather_pool_return(&pool, more);
    assert_int_equal(pool.spare_bytes, 0);
    gather_pool_return(&pool, one);
    gather_pool_return(&pool, two);
    assert_int_equal(pool.spare_bytes, 2 * EACH);
    /* A unit that is a little smaller takes a spare buffer, and one that is much smaller does not. */
    struct gather_buffer *similar = pool_take(&pool, EACH - 4096, false);
    assert_true(similar == one || similar == two);
    struct gather_buffer *small = pool_take(&pool, EACH / 4, false);
    assert_int_equal(small->bytes, EACH / 4);
    assert_true(pool.used_bytes + pool.spare_bytes <= pool.limit_bytes);
    gather_pool_return(&pool, similar);
    gather_pool_return(&pool, small);
    assert_true(pool.spare_bytes <= pool.limit_bytes);
    assert_int_equal(pool.limit_bytes, 2 * EACH);
    /* A step that needed two buffers leaves two, and one that needed one leaves one. */
    gather_pool_end_step(&pool);
    assert_int_equal(pool.limit_bytes, 2 * EACH);
    gather_pool_return(&pool, pool_take(&pool, EACH, false));
    gather_pool_end_step(&pool);
    assert_int_equal(pool.limit_bytes, EACH);
    assert_true(pool.spare_bytes <= EACH);
    gather_pool_finish(&pool);
    assert_true(!pool.spare && !pool.spare_bytes);
}

/* ---- gathers ---- */
static tutti_zero *zero_make(struct rank *me)
{
    tutti_zero_parameter parameters[UNITS];
    tutti_dtype types[UNITS];
    tutti_zero *zero;
    for (int u = 0; u < UNITS; u++) {
        parameters[u] = (tutti_zero_parameter){ FLOATS, u, 0 };
        types[u] = TUTTI_FLOAT32;
    }
    tutti_zero_config c = TUTTI_ZERO_CONFIG_INIT;
    c.comm = me->comm;
    c.parameters = c.units = UNITS;
    c.groups = 1;
    c.parameter = parameters;
    c.dtype = types;
    c.placement = TUTTI_ZERO_SHARDED;
    c.rule = TUTTI_ZERO_SGD;
    c.prefetch = 1;
    REQUIRE(tutti_zero_create(&zero, &c) == TUTTI_OK);
    for (int u = 0; u < UNITS && me->rank == 0; u++)
        for (int i = 0; i < FLOATS; i++) ((float *)tutti_zero_parameter_at(zero, u))[i] = (float)(100 * u + i % 7);
    REQUIRE(tutti_zero_begin(zero) == TUTTI_OK);
    return zero;
}
static void require_values(const tutti_zero *zero, int unit, int step)
{
    const float *at = tutti_zero_parameter_at(zero, unit);
    for (int i = 0; i < FLOATS; i++) REQUIRE(at[i] == (float)(100 * unit + i % 7 - step));
}
static void take_step(tutti_zero *zero, int step)
{
    tutti_zero_rates descent = { .rate = 1 };
    for (int u = 0; u < UNITS; u++) {
        REQUIRE(tutti_zero_use(zero, u) == TUTTI_OK);
        require_values(zero, u, step);
        REQUIRE(tutti_zero_release(zero, u) == TUTTI_OK);
    }
    for (int u = UNITS - 1; u >= 0; u--) {
        float *at;
        bool adds;
        REQUIRE(tutti_zero_use_backward(zero, u) == TUTTI_OK);
        require_values(zero, u, step);
        REQUIRE(tutti_zero_gradient(zero, u, (void **)&at, &adds) == TUTTI_OK);
        for (int i = 0; i < FLOATS; i++) at[i] = 1;
        REQUIRE(tutti_zero_ready(zero, u) == TUTTI_OK);
    }
    REQUIRE(tutti_zero_step(zero, &descent, 1) == TUTTI_OK);
}
static long count_faults(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
}
/* The process has all ranks. Each step gathers at least UNITS units on each rank. */
static void fault_in_nothing(struct rank *me)
{
    tutti_zero *zero = zero_make(me);
    long before = 0, gathered = (long)me->size * UNITS * (STEPS - COUNTED) * (EACH / sysconf(_SC_PAGESIZE));
    for (int step = 0; step < STEPS; step++) {
        if (step == COUNTED) {
            world_meet(me);
            before = count_faults();
        }
        take_step(zero, step);
    }
    world_meet(me);
    long faults = count_faults() - before;
    if (faults > gathered / PAGES_PER_FAULT)
        fprintf(stderr, "%ld page faults while %ld pages were gathered\n", faults, gathered);
    REQUIRE(faults <= gathered / PAGES_PER_FAULT);
    /* A block of whole units leaves no buffers behind that steps do not need. */
    REQUIRE(tutti_zero_keep(zero, true) == TUTTI_OK);
    for (int u = 0; u < UNITS; u++) require_values(zero, u, STEPS);
    REQUIRE(tutti_zero_keep(zero, false) == TUTTI_OK);
    take_step(zero, STEPS);
    REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
}
static void test_gathers_cause_no_page_faults(void **state)
{
    (void)state;
    skip_without_moves();
#ifdef __SANITIZE_THREAD__
    /* The thread sanitizer forgets its record of a range, and faults it in again, whenever pages are mapped there. */
    skip();
#endif
    world_threads(2, NULL, fault_in_nothing, NULL);
    world_threads(3, NULL, fault_in_nothing, NULL);
}
/* The child of a process with gathered units: they read as NaN there, and what the child allocates next stays its own
   when it destroys its copy of the tutti_zero. */
static int child_main(tutti_zero *zero)
{
    for (int u = 0; u < UNITS; u++) {
        const float *at = tutti_zero_parameter_at(zero, u);
        if (!isnan(at[0]) || !isnan(at[FLOATS - 1])) return 1;
    }
    unsigned char *own = malloc(BYTES);
    if (!own) return 2;
    memset(own, 7, BYTES);
    tutti_zero_destroy(zero);
    for (size_t i = 0; i < BYTES; i++)
        if (own[i] != 7) return 3;
    return 0;
}
static void fork_with_gathered_units(struct rank *me)
{
    int exited;
    tutti_zero *zero = zero_make(me);
    take_step(zero, 0);
    REQUIRE(tutti_zero_keep(zero, true) == TUTTI_OK);
    world_meet(me);
    if (me->rank == 0) {
        pid_t child = fork();
        if (child == 0) _exit(child_main(zero));
        REQUIRE(waitpid(child, &exited, 0) == child);
        REQUIRE(WIFEXITED(exited) && WEXITSTATUS(exited) == 0);
    }
    world_meet(me);
    for (int u = 0; u < UNITS; u++) require_values(zero, u, 1);
    REQUIRE(tutti_zero_keep(zero, false) == TUTTI_OK);
    REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
}
static void test_gathered_units_are_nan_in_a_child(void **state)
{
    (void)state;
    skip_without_moves();
    world_threads(2, NULL, fork_with_gathered_units, NULL);
}
unit_function test_pages;
int test_pages(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moved_pages_keep_their_contents),
        cmocka_unit_test(test_pages_that_cannot_move_are_mapped_again),
        cmocka_unit_test(test_pool_keeps_what_was_in_use_at_once),
        cmocka_unit_test(test_gathers_cause_no_page_faults),
        cmocka_unit_test(test_gathered_units_are_nan_in_a_child),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
