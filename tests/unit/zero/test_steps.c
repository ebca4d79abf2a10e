/* Reads, barriers and new values between steps, and ranks that leave or die during training, with and without async
   steps. */
#include "include/tutti_zero.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <signal.h>

#define REQUIRE_ERROR(text) REQUIRE(strstr(tutti_get_last_error(), text) != NULL)

static tutti_zero_parameter four[4] = { { 5000, 0, 0 }, { 5000, 1, 0 }, { 5000, 2, 0 }, { 5000, 3, 0 } };
static const tutti_zero_rates descent = { .rate = 1 };
struct way { tutti_zero_placement placement; bool ahead; };
static tutti_zero *make_four(struct rank *me, struct way way, int buffers)
{
    static const tutti_dtype types[4] = { TUTTI_FLOAT32, TUTTI_FLOAT32, TUTTI_FLOAT32, TUTTI_FLOAT32 };
    tutti_zero *zero;
    tutti_zero_config c = TUTTI_ZERO_CONFIG_INIT;
    c.comm = me->comm;
    c.groups = 1;
    c.placement = way.placement;
    c.ahead = way.ahead;
    c.parameters = c.units = 4;
    c.parameter = four;
    c.dtype = types;
    c.rule = TUTTI_ZERO_SGD;
    c.buffers = buffers;
    REQUIRE(tutti_zero_create(&zero, &c) == TUTTI_OK);
    for (int p = 0; p < 4 && me->rank == 0; p++) memset(tutti_zero_parameter_at(zero, p), 0, 5000 * sizeof(float));
    REQUIRE(tutti_zero_begin(zero) == TUTTI_OK);
    return zero;
}
static void write_gradient(tutti_zero *zero, int parameter, float number)
{
    float *at;
    bool adds;
    REQUIRE(tutti_zero_gradient(zero, parameter, (void **)&at, &adds) == TUTTI_OK);
    for (int i = 0; i < 5000; i++) at[i] = adds ? at[i] + number : number;
    REQUIRE(tutti_zero_ready(zero, parameter) == TUTTI_OK);
}
static bool is_all(tutti_zero *zero, int parameter, float number)
{
    const float *at = tutti_zero_parameter_at(zero, parameter);
    int i = 0;
    while (i < 5000 && at[i] == number) i++;
    return i == 5000;
}
static void use_units(tutti_zero *zero)
{
    for (int u = 0; u < 4; u++) REQUIRE(tutti_zero_use(zero, u) == TUTTI_OK);
}
static struct way way_of(const struct rank *me) { return *(struct way *)me->context; }
/* A rank that has the norm may read the old values until its own step, even if the other ranks wait for it. */
static void read_before_the_step(struct rank *me)
{
    tutti_zero *zero = make_four(me, way_of(me), 0);
    for (int step = 0; step < 5; step++) {
        double norm;
        use_units(zero);
        for (int p = 3; p >= 0; p--) write_gradient(zero, p, 1);
        REQUIRE(tutti_zero_norm(zero, &norm) == TUTTI_OK);
        if (me->rank == step % me->size) sleep_us(3000);
        for (int p = 0; p < 4; p++) REQUIRE(is_all(zero, p, (float)-step));
        REQUIRE(tutti_zero_step(zero, &descent, 1) == TUTTI_OK);
        use_units(zero);
    }
    REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
}
/* Only rank 0 has gradients of parameter 3, there is one buffer, and the ranks meet in a barrier of the program before
   the step. */
static void meet_before_the_step(struct rank *me)
{
    tutti_zero *zero = make_four(me, way_of(me), 1);
    for (int step = 0; step < 3; step++) {
        use_units(zero);
        for (int pass = 0; pass < 2; pass++)
            for (int p = 3; p >= 0; p--)
                if (p != 3 || me->rank == 0) write_gradient(zero, p, (float)me->size);
        REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
        REQUIRE(tutti_zero_step(zero, &descent, 1) == TUTTI_OK);
        use_units(zero);
        REQUIRE(is_all(zero, 3, (float)(-2 * (step + 1))) && is_all(zero, 0, (float)(-2 * me->size * (step + 1))));
    }
    REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
}
/* After tutti_zero_begin all ranks have the values of rank 0, even if a step was still running. */
static void begin_with_new_values(struct rank *me)
{
    tutti_zero *zero = make_four(me, way_of(me), 0);
    for (int step = 1; step < 6; step++) {
        use_units(zero);
        for (int p = 3; p >= 0; p--) write_gradient(zero, p, 1);
        REQUIRE(tutti_zero_step(zero, &descent, 1) == TUTTI_OK && tutti_zero_claim(zero) == TUTTI_OK);
        for (int p = 0; p < 4 && me->rank == 0; p++)
            for (int i = 0; i < 5000; i++) ((float *)tutti_zero_parameter_at(zero, p))[i] = (float)step;
        REQUIRE(tutti_zero_begin(zero) == TUTTI_OK);
        use_units(zero);
        for (int p = 0; p < 4; p++) REQUIRE(is_all(zero, p, (float)step));
        /* All ranks have read the values before the next step. */
        REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    }
    REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
}
/* The last step of a rank reaches rank 0, which reads the values when the other ranks may have left. */
static void leave_after_the_step(struct rank *me)
{
    tutti_zero *zero = make_four(me, way_of(me), 0);
    /* A rank can use a unit without the others. */
    bool alone = way_of(me).placement != TUTTI_ZERO_SHARDED;
    use_units(zero);
    for (int p = 3; p >= 0; p--) write_gradient(zero, p, 1);
    REQUIRE(tutti_zero_step(zero, &descent, 1) == TUTTI_OK);
    if (me->rank == 0) sleep_us(30000);
    for (int u = 0; u < 4 && (me->rank == 0 || !alone); u++)
        REQUIRE(tutti_zero_use(zero, u) == TUTTI_OK && is_all(zero, u, -1));
    REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
}
static void test_calls_between_steps(void **state)
{
    (void)state;
    rank_function *all[] = { read_before_the_step, meet_before_the_step, begin_with_new_values, leave_after_the_step };
    for (int i = 0; i < 4; i++)
        for (int n = 0; n < 2 * TUTTI_ZERO_PLACEMENTS; n++) {
            struct way way = { n % TUTTI_ZERO_PLACEMENTS, n >= TUTTI_ZERO_PLACEMENTS };
            world_threads(2, NULL, all[i], &way);
            world_threads_on("0,1,0,1", 4, NULL, all[i], &way);
        }
}
static void drop_used_gradients(struct rank *me)
{
    tutti_zero *zero = make_four(me, way_of(me), 0);
    write_gradient(zero, 0, 1);
    tutti_status status = me->rank == 1 ? tutti_zero_drop(zero) : tutti_zero_step(zero, &descent, 1);
    /* ABORTED: another rank found the mismatch before. */
    REQUIRE(status == TUTTI_MISMATCH || status == TUTTI_ABORTED);
    if (status == TUTTI_MISMATCH) REQUIRE_ERROR("call tutti_zero_settle on all");
    world_meet(me);
    REQUIRE(is_all(zero, 0, 0) && tutti_zero_settle(zero) == status);
    world_meet(me);
    REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
}
/* One rank has no gradient when all drop those of the step, which they have settled. */
static void drop_absent_gradients(struct rank *me)
{
    tutti_zero *zero = make_four(me, way_of(me), 0);
    for (int step = 0; step < 4; step++) {
        for (int p = 3; p >= 0 && me->rank != step % me->size; p--) write_gradient(zero, p, 7);
        REQUIRE(tutti_zero_settle(zero) == TUTTI_OK && tutti_zero_drop(zero) == TUTTI_OK);
        for (int p = 3; p >= 0; p--) write_gradient(zero, p, 1);
        REQUIRE(tutti_zero_step(zero, &descent, 1) == TUTTI_OK);
        use_units(zero);
        for (int p = 0; p < 4; p++) REQUIRE(is_all(zero, p, (float)(-step - 1)));
    }
    REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
}
/* A unit whose sum has not started yet is not summed while the program adds a second gradient. */
static void add_to_waiting_gradient(struct rank *me)
{
    tutti_zero *zero = make_four(me, way_of(me), 0);
    float *at;
    bool adds;
    write_gradient(zero, 0, 1);
    REQUIRE(tutti_zero_gradient(zero, 0, (void **)&at, &adds) == TUTTI_OK && adds);
    for (int p = 3; p > 0; p--) write_gradient(zero, p, 1);
    sleep_us(2000);
    for (int i = 0; i < 5000; i++) at[i] += 1;
    REQUIRE(tutti_zero_ready(zero, 0) == TUTTI_OK && tutti_zero_ready(zero, 0) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_zero_step(zero, &descent, 1) == TUTTI_OK && tutti_zero_use(zero, 0) == TUTTI_OK);
    REQUIRE(is_all(zero, 0, -2));
    REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
}
static void leave_before_the_step(struct rank *me)
{
    tutti_zero *zero = make_four(me, way_of(me), 0);
    for (int p = 3; p >= 0; p--) write_gradient(zero, p, 1);
    REQUIRE(tutti_zero_settle(zero) == TUTTI_OK);
    if (me->rank == 1) REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
    if (me->rank == 1) return;
    tutti_status status = tutti_zero_step(zero, &descent, 1);
    if (status == TUTTI_OK) status = tutti_zero_use(zero, 0);
    REQUIRE(status == TUTTI_ABORTED || status == TUTTI_PEER_LOST);
    REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
}
static void test_ranks_that_drop_add_or_leave(void **state)
{
    (void)state;
    for (int ahead = 0; ahead < 2; ahead++) {
        struct way way = { TUTTI_ZERO_SHARED, ahead };
        world_threads(4, NULL, drop_used_gradients, &way);
        world_threads(2, NULL, drop_absent_gradients, &way);
        world_threads(2, NULL, add_to_waiting_gradient, &way);
        world_threads(2, NULL, leave_before_the_step, &way);
    }
}
#ifndef NO_PROCESSES
static void die_after_a_step(struct rank *me)
{
    tutti_zero *zero = make_four(me, way_of(me), 0);
    tutti_status status = TUTTI_OK;
    for (int step = 0; step < 1000 && status == TUTTI_OK; step++) {
        for (int u = 0; u < 4 && status == TUTTI_OK; u++) status = tutti_zero_use(zero, u);
        for (int p = 3; p >= 0 && status == TUTTI_OK; p--) {
            void *at;
            bool adds;
            status = tutti_zero_gradient(zero, p, &at, &adds);
            if (status == TUTTI_OK) status = tutti_zero_ready(zero, p);
        }
        if (status == TUTTI_OK) status = tutti_zero_step(zero, &descent, 1);
        if (me->rank == 1 && step == 3) kill(getpid(), SIGKILL);
    }
    REQUIRE(status == TUTTI_PEER_LOST);
    REQUIRE_ERROR("rank 1");
    /* Later calls return the same error. */
    REQUIRE(tutti_zero_settle(zero) == TUTTI_PEER_LOST);
    REQUIRE_ERROR("rank 1");
    REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
    _exit(tutti_comm_destroy(me->comm) != TUTTI_OK);
}
static void test_rank_that_dies_after_a_step_is_named(void **state)
{
    (void)state;
    /* That network connects only threads. */
    if (getenv("WORLD_NETWORK")) skip();
    for (tutti_zero_placement placement = 0; placement < TUTTI_ZERO_SHARDED; placement++)
        assert_int_equal(world_processes(2, 60, die_after_a_step, &(struct way){ placement, true }), 1);
}
#endif
unit_function test_steps;
int test_steps(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_between_steps),
        cmocka_unit_test(test_ranks_that_drop_add_or_leave),
#ifndef NO_PROCESSES
        cmocka_unit_test(test_rank_that_dies_after_a_step_is_named),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
