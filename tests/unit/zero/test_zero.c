/* Training with zero, compared with a reference in one process. After each step the parameters of every rank have the
   same bits as the reference, in any order of gradients, with several passes and held passes, and with gradients that
   some or all ranks leave out. */
#include "include/tutti_zero.h"
#include "tests/support/random.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <math.h>
#include <signal.h>

#define REQUIRE_ERROR(text) REQUIRE(strstr(tutti_get_last_error(), text) != NULL)
/* The number of models for each placement. --models N sets it. */
#ifdef FEW
static int turns = 3;
#else
static int turns = 12;
#endif
enum { MOST_PARAMETERS = 12, MOST_UNITS = 5, STEPS = 4, MOST_ELEMENTS = 3000 };

/* A model and its training, which all ranks draw from one seed. */
struct model {
    tutti_zero_parameter parameter[MOST_PARAMETERS];
    tutti_dtype dtype[MOST_UNITS];
    tutti_zero_config config;
    tutti_zero_rates rates[2];
    /* The number of backward passes in a step. */
    int passes;
    /* All passes but the last are held. */
    bool holds;
    /* Some ranks have no gradient of some parameters. */
    bool leaves_out;
    uint64_t seed;
};
static int below(uint64_t *seed, int n) { return (int)(random_next(seed) % (uint64_t)n); }
static struct model draw(uint64_t seed, tutti_zero_placement placement)
{
    struct model m = { .seed = seed };
    int unit = 0;
    m.config = (tutti_zero_config)TUTTI_ZERO_CONFIG_INIT;
    m.config.parameters = 1 + below(&seed, MOST_PARAMETERS);
    m.config.groups = 2;
    for (int i = 0; i < m.config.parameters; i++) {
        if (i && unit < MOST_UNITS - 1) unit += below(&seed, 2);
        m.parameter[i] = (tutti_zero_parameter){ 1 + (size_t)below(&seed, MOST_ELEMENTS), unit, below(&seed, 2) };
    }
    m.config.units = unit + 1;
    m.config.placement = placement;
    m.config.rule = (tutti_zero_rule)(1 + below(&seed, TUTTI_ZERO_RULES - 1));
    m.config.buffers = below(&seed, 3);
    m.config.ahead = below(&seed, 2);
    for (int u = 0; u < MOST_UNITS; u++) m.dtype[u] = TUTTI_FLOAT32;
    for (int g = 0; g < 2; g++) m.rates[g] = (tutti_zero_rates){ 0.01 * (g + 1), 0.1 * g, 0.9, 0.9, 0.99, 1e-8 };
    m.passes = 1 + below(&seed, 3);
    m.holds = below(&seed, 2);
    m.leaves_out = below(&seed, 2);
    bool packs = below(&seed, 3) == 0 && placement != TUTTI_ZERO_WHOLE;
    /* Compression keeps all numbers, so the averages are exact. */
    if (packs) m.config.compression.form = below(&seed, 2) ? TUTTI_COMPRESS_TOPK : TUTTI_COMPRESS_THRESHOLD;
    m.config.compression.threshold = 1e-3;
    m.config.compression.kept = 1024;
    m.config.compression.feedback = below(&seed, 2) && packs;
    return m;
}
/* Returns numbers whose sums and averages over four ranks are exact, so the order of additions does not matter. */
static float gradient_of(const struct model *m, int rank, int step, int pass, int parameter, size_t i)
{
    uint64_t mixed = m->seed + (uint64_t)rank * 1000003 + (uint64_t)step * 5077 + (uint64_t)pass * 331
        + (uint64_t)parameter * 17 + i;
    return (float)((int)(random_next(&mixed) % 2001) - 1000) / 64;
}
static float first_value(int parameter, size_t i) { return (float)((parameter * 31 + (int)i * 7) % 200 - 100) / 32; }
/* Returns true if the rank has a gradient of the parameter in that pass. */
static bool has_gradient(const struct model *m, int rank, int step, int pass, int parameter)
{
    uint64_t mixed = m->seed * 3 + (uint64_t)(((rank * STEPS + step) * 4 + pass) * MOST_PARAMETERS + parameter);
    if (!m->leaves_out) return true;
    /* In step 1, no rank has a gradient of these parameters. */
    if (parameter % 5 == 3 && step == 1) return false;
    return random_next(&mixed) % 4 != 0;
}

/* ---- the reference ---- */
struct reference { float value[MOST_ELEMENTS], first[MOST_ELEMENTS], second[MOST_ELEMENTS]; int steps; };
static bool sum_of(const struct model *m, int ranks, int step, int parameter, float *sum)
{
    bool any = false;
    memset(sum, 0, MOST_ELEMENTS * sizeof *sum);
    for (int rank = 0; rank < ranks; rank++)
        for (int pass = 0; pass < m->passes; pass++) {
            if (!has_gradient(m, rank, step, pass, parameter)) continue;
            any = true;
            for (size_t i = 0; i < m->parameter[parameter].count; i++)
                sum[i] += gradient_of(m, rank, step, pass, parameter, i) / (float)ranks;
        }
    return any;
}
static float step_adam(const tutti_zero_rates *r, bool decoupled, int t, float g, float x, float *m, float *v)
{
    if (decoupled) x *= (float)(1 - r->rate * r->decay);
    else g = fmaf(x, (float)r->decay, g);
    *m = fmaf((float)(1 - r->beta1), g - *m, *m);
    float kept = *v * (float)r->beta2, taken = (float)(1 - r->beta2) * g;
    *v = fmaf(taken, g, kept);
    float spread = sqrtf(*v) / (float)sqrt(1 - pow(r->beta2, t));
    spread += (float)r->epsilon;
    float way = (float)(r->rate / (1 - pow(r->beta1, t))) * *m;
    way /= spread;
    return x - way;
}
static float step_sgd(const tutti_zero_rates *r, bool moves, int t, float g, float x, float *m)
{
    g = fmaf(x, (float)r->decay, g);
    if (moves) {
        float kept = *m * (float)r->momentum;
        g = *m = t == 1 ? g : kept + g;
    }
    return fmaf(g, -(float)r->rate, x);
}
static void step_reference(const struct model *m, struct reference *all, int ranks, int step, double scale)
{
    static _Thread_local float sum[MOST_ELEMENTS];
    for (int p = 0; p < m->config.parameters; p++) {
        struct reference *r = &all[p];
        const tutti_zero_rates *rates = &m->rates[m->parameter[p].group];
        if (!sum_of(m, ranks, step, p, sum)) continue;
        r->steps++;
        for (size_t i = 0; i < m->parameter[p].count; i++) {
            float g = sum[i] * (float)scale;
            bool adam = m->config.rule >= TUTTI_ZERO_ADAM, decoupled = m->config.rule == TUTTI_ZERO_ADAMW;
            r->value[i] = adam
                ? step_adam(rates, decoupled, r->steps, g, r->value[i], &r->first[i], &r->second[i])
                : step_sgd(rates, m->config.rule == TUTTI_ZERO_MOMENTUM, r->steps, g, r->value[i], &r->first[i]);
        }
    }
}

/* ---- a rank ---- */
static void shuffle(uint64_t *seed, int *order, int count)
{
    for (int i = 0; i < count; i++) order[i] = i;
    for (int i = count - 1; i > 0; i--) {
        int k = below(seed, i + 1), kept = order[i];
        order[i] = order[k];
        order[k] = kept;
    }
}
static void use_and_compare_all(const struct model *m, tutti_zero *zero, const struct reference *all)
{
    for (int u = 0; u < m->config.units; u++) REQUIRE(tutti_zero_use(zero, u) == TUTTI_OK);
    for (int p = 0; p < m->config.parameters; p++)
        REQUIRE(memcmp(tutti_zero_parameter_at(zero, p), all[p].value, m->parameter[p].count * sizeof(float)) == 0);
}
static void write_gradient(const struct model *m, tutti_zero *zero, int rank, int step, int pass, int p)
{
    float *at;
    bool adds;
    if (!has_gradient(m, rank, step, pass, p)) return;
    REQUIRE(tutti_zero_gradient(zero, p, (void **)&at, &adds) == TUTTI_OK);
    for (size_t i = 0; i < m->parameter[p].count; i++) {
        float g = gradient_of(m, rank, step, pass, p, i);
        at[i] = adds ? at[i] + g : g;
    }
    REQUIRE(tutti_zero_ready(zero, p) == TUTTI_OK);
}
/* Runs a backward pass. Each rank has its own order and its own pauses. */
static void run_backward(const struct model *m, tutti_zero *zero, struct rank *me, int step, int pass, uint64_t *own)
{
    int order[MOST_PARAMETERS];
    shuffle(own, order, m->config.parameters);
    REQUIRE(tutti_zero_hold(zero, m->holds && pass < m->passes - 1) == TUTTI_OK);
    for (int i = 0; i < m->config.parameters; i++) {
        if (below(own, 8) == 0) sleep_us(below(own, 300));
        write_gradient(m, zero, me->rank, step, pass, order[i]);
    }
}
static double norm_of(const struct model *m, int ranks, int step)
{
    static _Thread_local float sum[MOST_ELEMENTS];
    double squares = 0;
    for (int p = 0; p < m->config.parameters; p++) {
        if (!sum_of(m, ranks, step, p, sum)) continue;
        for (size_t i = 0; i < m->parameter[p].count; i++) squares += (double)sum[i] * (double)sum[i];
    }
    return sqrt(squares);
}
/* Checks that the memory for gradients is within its limit: the allowed number of buffers for each length of units, and
   two sums of each slice. */
static void check_memory(const struct model *m, const tutti_zero *zero, int ranks)
{
    tutti_zero_report report = { .struct_size = sizeof report };
    size_t unit[MOST_UNITS] = { 0 }, most = 0, slices = m->config.placement == TUTTI_ZERO_WHOLE ? 1 : (size_t)ranks;
    REQUIRE(tutti_zero_get_report(zero, &report) == TUTTI_OK && report.steps == STEPS);
    for (int p = 0; p < m->config.parameters; p++) unit[m->parameter[p].unit] += (m->parameter[p].count + 15) / 16 * 64;
    for (int u = 0; u < m->config.units; u++) {
        size_t pages = 4096 * slices, bytes = (unit[u] + pages - 1) / pages * pages;
        int buffers = m->config.buffers ? m->config.buffers : 2, alike = 0;
        for (int v = 0; v < u; v++) alike += (unit[v] + pages - 1) / pages * pages == bytes;
        /* The sums of the first and the second round. */
        most += 2 * bytes / slices;
        if (slices > 1 && !alike) most += bytes * (size_t)buffers;
        if (m->config.compression.feedback) most += bytes;
    }
    REQUIRE(report.gradient_bytes <= most);
}
/* Checks the events of a training that was watched from its beginning to its end. */
static void check_events(const struct model *m, tutti_zero *zero)
{
    enum { ROOM = 4000 };
    tutti_zero_event *event = calloc(ROOM, sizeof *event);
    size_t count, missed, of_kind[TUTTI_ZERO_EVENT_KINDS] = { 0 }, units = (size_t)m->config.units;
    REQUIRE(tutti_zero_watch(zero, 0) == TUTTI_OK);
    REQUIRE(tutti_zero_get_events(zero, event, ROOM, &count, &missed) == TUTTI_OK && count <= ROOM && !missed);
    for (size_t i = 0; i < count; i++) {
        const tutti_zero_event *e = &event[i];
        bool all = e->kind == TUTTI_ZERO_STEPPED || e->kind == TUTTI_ZERO_SETTLED;
        REQUIRE(e->began_ns > 0 && e->ended_ns >= e->began_ns && e->kind < TUTTI_ZERO_EVENT_KINDS);
        REQUIRE(all ? e->unit == -1 : e->unit >= 0 && e->unit < m->config.units);
        of_kind[e->kind]++;
    }
    REQUIRE(of_kind[TUTTI_ZERO_STEPPED] == STEPS && of_kind[TUTTI_ZERO_SETTLED] == 1);
    REQUIRE(of_kind[TUTTI_ZERO_UPDATED] == STEPS * units && of_kind[TUTTI_ZERO_SUMMED] >= STEPS * units);
    REQUIRE(of_kind[TUTTI_ZERO_USED] >= (STEPS + 1) * units);
    if (m->config.placement == TUTTI_ZERO_REPLICATED) REQUIRE(of_kind[TUTTI_ZERO_GATHERED] == STEPS * units);
    REQUIRE(tutti_zero_watch(zero, 1) == TUTTI_OK && tutti_zero_use(zero, 0) == TUTTI_OK
        && tutti_zero_use(zero, 0) == TUTTI_OK);
    REQUIRE(tutti_zero_get_events(zero, event, ROOM, &count, &missed) == TUTTI_OK && count == 1 && missed >= 1);
    free(event);
}
static void train_steps(struct rank *me, struct model *m)
{
    static _Thread_local struct reference all[MOST_PARAMETERS];
    tutti_zero *zero;
    uint64_t own = m->seed * 77 + (uint64_t)me->rank;
    memset(all, 0, sizeof all);
    m->config.comm = me->comm;
    m->config.parameter = m->parameter;
    m->config.dtype = m->dtype;
    REQUIRE(tutti_zero_create(&zero, &m->config) == TUTTI_OK);
    for (int p = 0; p < m->config.parameters; p++)
        for (size_t i = 0; i < m->parameter[p].count; i++) {
            all[p].value[i] = first_value(p, i);
            if (me->rank == 0) ((float *)tutti_zero_parameter_at(zero, p))[i] = all[p].value[i];
        }
    REQUIRE(tutti_zero_begin(zero) == TUTTI_OK);
    if (m->seed % 2) REQUIRE(tutti_zero_watch(zero, 4000) == TUTTI_OK);
    for (int step = 0; step < STEPS; step++) {
        double norm, scale = step % 2 ? 0.5 : 1;
        use_and_compare_all(m, zero, all);
        for (int pass = 0; pass < m->passes; pass++) run_backward(m, zero, me, step, pass, &own);
        if (step == 2) {
            REQUIRE(tutti_zero_norm(zero, &norm) == TUTTI_OK);
            REQUIRE(fabs(norm - norm_of(m, me->size, step)) <= 1e-6 * norm);
        }
        REQUIRE(tutti_zero_step(zero, m->rates, scale) == TUTTI_OK);
        step_reference(m, all, me->size, step, scale);
    }
    use_and_compare_all(m, zero, all);
    check_memory(m, zero, me->size);
    if (m->seed % 2) check_events(m, zero);
    REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
}
static void train_models(struct rank *me)
{
    const uint64_t *seed = me->context;
    for (uint64_t turn = 0; turn < (uint64_t)turns; turn++)
        for (tutti_zero_placement placement = 0; placement < TUTTI_ZERO_PLACEMENTS; placement++) {
            struct model m = draw(*seed + 101 * turn, placement);
            train_steps(me, &m);
        }
}
static void test_parameters_equal_the_reference(void **state)
{
    (void)state;
    for (int size = 1; size <= 4; size *= 2) world_threads(size, NULL, train_models, &(uint64_t){ 5 + (uint64_t)size });
}
static void test_parameters_equal_the_reference_over_hosts(void **state)
{
    (void)state;
    world_threads_on("2", 4, NULL, train_models, &(uint64_t){ 1009 });
    world_threads_on("0,1,0,1", 4, NULL, train_models, &(uint64_t){ 2003 });
    world_threads_on("4", 4, NULL, train_models, &(uint64_t){ 3001 });
}

/* ---- errors ---- */
static tutti_zero_parameter two[2] = { { 100, 0, 0 }, { 200, 1, 0 } };
static const tutti_dtype floats[2] = { TUTTI_FLOAT32, TUTTI_FLOAT32 };
static tutti_zero_config config_of(struct rank *me, tutti_zero_placement placement)
{
    tutti_zero_config c = TUTTI_ZERO_CONFIG_INIT;
    c.comm = me->comm;
    c.parameters = c.units = 2;
    c.groups = 1;
    c.parameter = two;
    c.dtype = floats;
    c.placement = placement;
    c.rule = TUTTI_ZERO_ADAMW;
    return c;
}
static void create_with_another_model(struct rank *me)
{
    tutti_zero *zero = NULL;
    tutti_zero_config c = config_of(me, TUTTI_ZERO_REPLICATED);
    tutti_zero_parameter other[2] = { { 100, 0, 0 }, { 200 + (size_t)(me->rank == 1), 1, 0 } };
    c.parameter = other;
    REQUIRE(tutti_zero_create(&zero, &c) == TUTTI_MISMATCH && !zero && tutti_last_error_is_refusal());
    REQUIRE_ERROR("parameters must have the same shapes and types");
    other[1].count = me->rank == 1 ? 0 : 200;
    REQUIRE(tutti_zero_create(&zero, &c) == TUTTI_INVALID_ARGUMENT && !zero);
    REQUIRE_ERROR(me->rank == 1 ? "parameter 1 has no elements" : "its own error says why");
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
}
static void test_different_models_mismatch(void **state)
{
    (void)state;
    world_threads(3, NULL, create_with_another_model, NULL);
}
static void make_wrong_calls(struct rank *me)
{
    tutti_zero *zero = NULL;
    void *at;
    bool adds;
    double norm;
    tutti_zero_rates rates = { 0.1, 0, 0.9, 0.9, 0.99, 1e-8 };
    tutti_zero_config c = config_of(me, TUTTI_ZERO_SHARED);
    c.struct_size = 8;
    REQUIRE(tutti_zero_create(&zero, &c) == TUTTI_INVALID_ARGUMENT);
    REQUIRE_ERROR("TUTTI_ZERO_CONFIG_INIT");
    c = config_of(me, TUTTI_ZERO_PLACEMENTS);
    REQUIRE(tutti_zero_create(&zero, &c) == TUTTI_INVALID_ARGUMENT);
    c = config_of(me, TUTTI_ZERO_SHARED);
    REQUIRE(tutti_zero_create(&zero, &c) == TUTTI_OK);
    REQUIRE(tutti_zero_use(zero, 0) == TUTTI_INVALID_ARGUMENT);
    REQUIRE_ERROR("tutti_zero_begin first");
    REQUIRE(tutti_zero_begin(zero) == TUTTI_OK);
    REQUIRE(tutti_zero_use(zero, 2) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_zero_gradient(zero, -1, &at, &adds) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_zero_ready(zero, 0) == TUTTI_INVALID_ARGUMENT);
    REQUIRE_ERROR("the program did not ask where to write its gradient");
    REQUIRE(tutti_zero_step(zero, NULL, 1) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(!tutti_zero_parameter_at(zero, 2));
    REQUIRE(tutti_zero_gradient(zero, 0, &at, &adds) == TUTTI_OK && !adds);
    memset(at, 0, 400);
    REQUIRE(tutti_zero_ready(zero, 0) == TUTTI_OK);
    REQUIRE(tutti_zero_drop(zero) == TUTTI_OK && tutti_zero_drop(zero) == TUTTI_OK);
    REQUIRE(tutti_zero_norm(zero, &norm) == TUTTI_OK && norm == 0);
    REQUIRE(tutti_zero_gradient(zero, 0, &at, &adds) == TUTTI_INVALID_ARGUMENT);
    REQUIRE_ERROR("take the step first");
    REQUIRE(tutti_zero_step(zero, &rates, 1) == TUTTI_OK);
    REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK && tutti_zero_destroy(NULL) == TUTTI_OK);
}
/* Dropped gradients change no parameter, whether they were summed or not. */
static void drop_gradients(struct rank *me)
{
    tutti_zero *zero;
    float *at, first[100];
    bool adds;
    tutti_zero_rates rates = { 0.1, 0, 0.9, 0.9, 0.99, 1e-8 };
    tutti_zero_config c = config_of(me, TUTTI_ZERO_SHARED);
    REQUIRE(tutti_zero_create(&zero, &c) == TUTTI_OK && tutti_zero_begin(zero) == TUTTI_OK);
    memcpy(first, tutti_zero_parameter_at(zero, 0), sizeof first);
    for (int parameter = 1; parameter >= 0; parameter--) {
        REQUIRE(tutti_zero_gradient(zero, parameter, (void **)&at, &adds) == TUTTI_OK && !adds);
        for (int i = 0; i < 100; i++) at[i] = 1;
        REQUIRE(tutti_zero_ready(zero, parameter) == TUTTI_OK && tutti_zero_drop(zero) == TUTTI_OK);
        REQUIRE(tutti_zero_step(zero, &rates, 1) == TUTTI_OK && tutti_zero_use(zero, 0) == TUTTI_OK);
        REQUIRE(memcmp(first, tutti_zero_parameter_at(zero, 0), sizeof first) == 0);
    }
    REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
}
static void test_dropped_gradients_change_nothing(void **state)
{
    (void)state;
    world_threads(2, NULL, drop_gradients, NULL);
}
static void test_wrong_calls_are_errors(void **state)
{
    (void)state;
    world_threads(2, NULL, make_wrong_calls, NULL);
}
static void create_on_uneven_hosts(struct rank *me)
{
    tutti_zero *zero = NULL;
    tutti_zero_config c = config_of(me, TUTTI_ZERO_SHARED);
    REQUIRE(tutti_zero_create(&zero, &c) == TUTTI_UNSUPPORTED && !zero);
    REQUIRE_ERROR("3 ranks are on 2 hosts, and 2 on the largest");
    c.placement = TUTTI_ZERO_REPLICATED;
    REQUIRE(tutti_zero_create(&zero, &c) == TUTTI_OK);
    REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
}
static void test_uneven_hosts_cannot_share_parameters(void **state)
{
    (void)state;
    world_threads_on("0,0,1", 3, NULL, create_on_uneven_hosts, NULL);
}
/* A rank that `stops` does not take its second step. Other ranks then wait for its slice until the timeout. */
static tutti_zero *stop_before_an_update(struct rank *me, bool stops)
{
    tutti_zero *zero = NULL;
    tutti_zero_rates rates = { 0.1, 0, 0.9, 0.9, 0.99, 1e-8 };
    tutti_zero_config c = config_of(me, TUTTI_ZERO_SHARED);
    c.timeout_ms = 300;
    REQUIRE(tutti_zero_create(&zero, &c) == TUTTI_OK && tutti_zero_begin(zero) == TUTTI_OK);
    REQUIRE(tutti_zero_step(zero, &rates, 1) == TUTTI_OK);
    REQUIRE(tutti_zero_use(zero, 0) == TUTTI_OK && tutti_zero_use(zero, 1) == TUTTI_OK);
    REQUIRE(tutti_zero_settle(zero) == TUTTI_OK && tutti_zero_claim(zero) == TUTTI_OK);
    if (!stops) REQUIRE(tutti_zero_step(zero, &rates, 1) == TUTTI_OK);
    return zero;
}
static void await_missing_update(struct rank *me)
{
    tutti_zero *zero = stop_before_an_update(me, me->rank == 1);
    if (me->rank == 0) {
        REQUIRE(tutti_zero_use(zero, 1) == TUTTI_TIMEOUT);
        bool spread = getenv("WORLD_HOSTS") != NULL;
        REQUIRE_ERROR(spread ? "unit 1 was not received from the other hosts"
                             : "rank 1 has not updated its slice of unit 1 within 300 ms");
        /* Later calls return the same error. */
        REQUIRE(tutti_zero_settle(zero) == TUTTI_TIMEOUT);
        REQUIRE_ERROR("unit 1");
    }
    world_meet(me);
    REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
}
static void test_missing_update_is_a_timeout(void **state)
{
    (void)state;
    world_threads(2, NULL, await_missing_update, NULL);
}
#ifndef NO_PROCESSES
static void await_dead_rank(struct rank *me)
{
    tutti_zero *zero = stop_before_an_update(me, me->rank == 1);
    if (me->rank == 1) kill(getpid(), SIGKILL);
    REQUIRE(tutti_zero_use(zero, 0) == TUTTI_PEER_LOST);
    REQUIRE_ERROR("rank 1");
    REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
    _exit(tutti_comm_destroy(me->comm) != TUTTI_OK);
}
static void test_rank_that_dies_is_named(void **state)
{
    (void)state;
    /* That network connects only threads. */
    if (getenv("WORLD_NETWORK")) skip();
    assert_int_equal(world_processes(2, 60, await_dead_rank, NULL), 1);
}
#endif

#ifndef NO_PROCESSES
static void test_parameters_equal_the_reference_on_processes(void **state)
{
    (void)state;
    assert_int_equal(world_processes(2, 100, train_models, &(uint64_t){ 41 }), 0);
}
#endif
unit_function test_zero;
int test_zero(void)
{
    int count = unit_arguments.count;
    char **arguments = unit_arguments.words;
    if (count == 3 && strcmp(arguments[1], "--models") == 0) turns = atoi(arguments[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parameters_equal_the_reference),
        cmocka_unit_test(test_parameters_equal_the_reference_over_hosts),
        cmocka_unit_test(test_different_models_mismatch),
        cmocka_unit_test(test_dropped_gradients_change_nothing),
        cmocka_unit_test(test_wrong_calls_are_errors),
        cmocka_unit_test(test_uneven_hosts_cannot_share_parameters),
        cmocka_unit_test(test_missing_update_is_a_timeout),
#ifndef NO_PROCESSES
        cmocka_unit_test(test_parameters_equal_the_reference_on_processes),
        cmocka_unit_test(test_rank_that_dies_is_named),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
