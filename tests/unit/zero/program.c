/* The gradients are whole numbers, and so small that no sum of them is rounded. */
#include "tests/unit/zero/program.h"
#include "backend/base/status.h"
#include "tests/unit/zero/verbs.h"
#include "zero/update.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PERIOD = 8, PAGE_FLOATS = 1024 };
static const struct plan *plan;
static const struct orders *orders;
static struct adversary adversary;
static tutti_zero_parameter shapes[MOST_PARAMETERS];
static float average[STEPS][MOST_PARAMETERS][PERIOD], value[STEPS + 1][MOST_PARAMETERS][PERIOD];
struct rank {
    /* `backward`: the number of units that this backward pass has not used yet. */
    int number, step, backward;
    /* Where to write the gradient of each parameter, and whether to add it to the one that is there. */
    float *place[MOST_PARAMETERS];
    bool adds[MOST_PARAMETERS];
    tutti_zero *zero;
};

/* ---- the expected values ---- */
static float gradient(int step, int rank, int parameter, int pass, int i)
{
    return (float)((7 * step + 3 * rank + 5 * parameter + 2 * pass + i) % 13 + 1);
}
static int gradients_of(int rank) { return plan->parameters - (plan->leaves_out && rank == plan->ranks - 1); }
static bool varies(int step) { return plan->varies >> step & 1; }
static bool is_dropped(int step) { return plan->closing == DROPS && varies(step); }
static void add_gradients(int step, int rank)
{
    for (int n = 0; n < gradients_of(rank); n++) {
        int p = orders->of[rank][step].gradient[n];
        for (int pass = 0; pass < plan_passes(plan); pass++)
            for (int i = 0; i < PERIOD; i++) average[step][p][i] += gradient(step, rank, p, pass, i);
    }
}
static void find_values(void)
{
    memset(average, 0, sizeof average);
    for (int p = 0; p < plan->parameters; p++)
        for (int i = 0; i < PERIOD; i++) value[0][p][i] = (float)(3 * p + i);
    for (int step = 0; step < STEPS; step++) {
        for (int r = 0; r < plan->ranks; r++) add_gradients(step, r);
        for (int p = 0; p < plan->parameters; p++)
            for (int i = 0; i < PERIOD; i++)
                value[step + 1][p][i] = value[step][p][i] - (is_dropped(step) ? 0 : average[step][p][i]);
    }
}
static double find_norm(int step)
{
    double sum = 0;
    for (int p = 0; p < plan->parameters; p++)
        for (size_t i = 0; i < shapes[p].count; i++) sum += average[step][p][i % PERIOD] * average[step][p][i % PERIOD];
    return sqrt(sum);
}

/* ---- the program of a rank ---- */
static bool call_succeeded(struct rank *me, tutti_status status)
{
    if (status != TUTTI_OK) strands_fault("rank %d, step %d: %s", me->number, me->step, status_detail());
    return !strands_have_ended_waits();
}
static void compare(struct rank *me, int parameter, const char *when)
{
    const float *at = tutti_zero_parameter_at(me->zero, parameter), *right = value[me->step][parameter];
    for (size_t i = 0; i < shapes[parameter].count; i += PERIOD - 1)
        if (at[i] != right[i % PERIOD]) {
            strands_fault("rank %d, step %d, parameter %d, element %zu: %g is read %s; %g is right", me->number,
                me->step, parameter, i, (double)at[i], when, (double)right[i % PERIOD]);
            return;
        }
}
/* Compares the parameters of a unit, or of all units (-1). With readers_lag, it compares them again when no other
   strand can continue. */
static void read_all(struct rank *me, int unit)
{
    for (int again = 0; again < 2; again++) {
        for (int p = 0; p < plan->parameters && !strands_have_ended_waits(); p++)
            if (unit < 0 || shapes[p].unit == unit) compare(me, p, again ? "a while after its use" : "after its use");
        if (!adversary.readers_lag) return;
        strand_lags(!again);
    }
}
static bool use_all(struct rank *me)
{
    for (int u = 0; u < plan->units; u++) {
        if (!call_succeeded(me, tutti_zero_use(me->zero, u))) return false;
        read_all(me, u);
        if (!call_succeeded(me, tutti_zero_release(me->zero, u))) return false;
    }
    return true;
}
static bool use_backward(struct rank *me, int down_to)
{
    for (; me->backward > down_to; me->backward--) {
        if (!call_succeeded(me, tutti_zero_use_backward(me->zero, me->backward - 1))) return false;
        read_all(me, me->backward - 1);
    }
    return true;
}
static bool skips(const struct rank *me) { return plan->skips_uses && me->step > 0; }
/* Meets the other ranks in a barrier. With SHARDED, uses are collective, so the rank first makes all of them. */
static bool meet(struct rank *me)
{
    if (plan->placement == TUTTI_ZERO_SHARDED && !use_backward(me, 0)) return false;
    return call_succeeded(me, tutti_barrier(verbs_comm(me->number), NULL));
}
/* Asks where to write gradient number n of the step. Each pass has all gradients of the order. Before the first of a
   pass, the rank uses all units. */
static bool ask_for_place(struct rank *me, const struct sum_order *o, int n)
{
    int count = gradients_of(me->number), parameter = o->gradient[n % count];
    if (plan->holds && n % count == 0
        && !call_succeeded(me, tutti_zero_hold(me->zero, n / count < plan_passes(plan) - 1)))
        return false;
    if (!skips(me) && n % count == 0 && (!use_backward(me, 0) || !use_all(me))) return false;
    if (n % count == 0) me->backward = skips(me) ? 0 : plan->units;
    if (o->meets == n && !meet(me)) return false;
    if (!use_backward(me, shapes[parameter].unit)) return false;
    return call_succeeded(me,
        tutti_zero_gradient(me->zero, parameter, (void **)&me->place[parameter], &me->adds[parameter]));
}
static bool write_gradient(struct rank *me, const struct sum_order *o, int n)
{
    int count = gradients_of(me->number), p = o->gradient[n % count];
    float *at = me->place[p];
    float fresh[PERIOD];
    for (int i = 0; i < PERIOD; i++) fresh[i] = (float)plan->ranks * gradient(me->step, me->number, p, n / count, i);
    if (!skips(me)) compare(me, p, "for a gradient");
    for (size_t i = 0; i < shapes[p].count; i++) at[i] = (me->adds[p] ? at[i] : 0) + fresh[i % PERIOD];
    return call_succeeded(me, tutti_zero_ready(me->zero, p));
}
static bool write_gradients(struct rank *me, const struct sum_order *o)
{
    int count = gradients_of(me->number) * plan_passes(plan);
    me->backward = 0;
    for (int n = 0, asked = 0; n < count; n++) {
        while (asked < count && asked <= n + plan->asks_ahead)
            if (!ask_for_place(me, o, asked++)) return false;
        if (!write_gradient(me, o, n)) return false;
    }
    return use_backward(me, 0) && (o->meets != count || meet(me));
}
static bool end_step(struct rank *me)
{
    double norm;
    if (is_dropped(me->step)) return call_succeeded(me, tutti_zero_drop(me->zero));
    if (plan->closing == SETTLES && !call_succeeded(me, tutti_zero_settle(me->zero))) return false;
    if (plan->closing == CLAIMS && !call_succeeded(me, tutti_zero_claim(me->zero))) return false;
    if (plan->closing == TAKES_NORM) {
        if (!call_succeeded(me, tutti_zero_norm(me->zero, &norm))) return false;
        if (norm != find_norm(me->step))
            strands_fault("rank %d, step %d: a norm of %g, and %g is right", me->number, me->step, norm,
                find_norm(me->step));
    }
    bool reads = plan->closing == SETTLES || plan->closing == TAKES_NORM;
    bool whole = plan->placement != TUTTI_ZERO_SHARDED && !skips(me);
    if (reads && whole) read_all(me, -1);
    return call_succeeded(me, tutti_zero_step(me->zero, &(tutti_zero_rates){ .rate = 1 }, 1));
}
static bool take_steps(struct rank *me)
{
    for (; me->step < STEPS; me->step++) {
        const struct sum_order *o = &orders->of[me->number][me->step];
        strand_set_answers(varies(me->step) && (me->number == 0 || !plan->one_asks) ? AS_CHOSEN : NOT_YET);
        if (o->meets == BEFORE_USES && !meet(me)) return false;
        if (!write_gradients(me, o) || !end_step(me)) return false;
    }
    return (plan->leaves && me->number == 0) || use_all(me);
}

/* ---- a run ---- */
static tutti_zero_config make_config(int rank)
{
    static const tutti_dtype types[MOST_PARAMETERS] = { TUTTI_FLOAT32, TUTTI_FLOAT32, TUTTI_FLOAT32, TUTTI_FLOAT32 };
    tutti_zero_config c = TUTTI_ZERO_CONFIG_INIT;
    c.comm = verbs_comm(rank);
    c.parameters = plan->parameters;
    c.units = plan->units;
    c.groups = 1;
    c.parameter = shapes;
    c.dtype = types;
    c.placement = plan->placement;
    c.rule = TUTTI_ZERO_SGD;
    /* Naps are long here, but no wait for another rank shall end by its timeout. */
    c.timeout_ms = INT64_MAX;
    c.buffers = plan->buffers;
    c.prefetch = plan->prefetch;
    c.ahead = plan->ahead;
    c.compression = (tutti_compression){ .form = plan->packs, .kept = 1024, .feedback = plan->packs };
    /* All gradients are larger, so none is left out. */
    c.compression.threshold = 1e-3;
    return c;
}
static void begin_and_train(struct rank *me)
{
    for (int p = 0; p < plan->parameters && me->number == 0; p++) {
        float *at = tutti_zero_parameter_at(me->zero, p);
        for (size_t i = 0; i < shapes[p].count; i++) at[i] = value[0][p][i % PERIOD];
    }
    if (call_succeeded(me, tutti_zero_begin(me->zero))) take_steps(me);
}
static void rank_main(void *context)
{
    struct rank *me = context;
    tutti_zero_config c = make_config(me->number);
    if (call_succeeded(me, tutti_zero_create(&me->zero, &c))) begin_and_train(me);
    /* Transfers in flight when the rank leaves end in time. */
    strand_set_answers(YES);
    tutti_zero_destroy(me->zero);
}
/* Sets the sizes of the parameters, so that the slice of each rank has elements of each unit. */
static void find_shapes(void)
{
    /* The number of parameters of the first unit. */
    int shared = plan->parameters - plan->units + 1;
    size_t whole = (size_t)(plan->ranks - 1) * PAGE_FLOATS + 8, before = whole - 40;
    for (int p = 0; p < plan->parameters; p++) {
        bool alone = p >= shared || shared == 1;
        size_t count = alone ? whole : p == shared - 1 ? 40 : before / (size_t)(shared - 1);
        if (plan->uneven && p == plan->parameters - 1) count += PAGE_FLOATS * (size_t)plan->ranks;
        shapes[p] = (tutti_zero_parameter){ count, p < shared ? 0 : p - shared + 1, 0 };
    }
}
void __wrap_optimizer_update_unit(struct optimizer *optimizer, int unit, const void *gradient, const uint8_t *used,
    const tutti_zero_rates *rates, double scale);
void __real_optimizer_update_unit(struct optimizer *optimizer, int unit, const void *gradient, const uint8_t *used,
    const tutti_zero_rates *rates, double scale);
void __wrap_optimizer_update_unit(struct optimizer *optimizer, int unit, const void *from, const uint8_t *used,
    const tutti_zero_rates *rates, double scale)
{
    strand_lags(adversary.writers_lag);
    __real_optimizer_update_unit(optimizer, unit, from, used, rates, scale);
}
const char *program_run(const struct plan *p, const struct orders *o, struct choices *choices, struct adversary a,
    bool *feasible)
{
    static struct rank ranks[MOST_RANKS];
    plan = p;
    orders = o;
    adversary = a;
    find_shapes();
    find_values();
    strands_begin(choices, a);
    verbs_begin(p->ranks, p->hosts, a.late);
    for (int r = 0; r < p->ranks; r++) {
        ranks[r] = (struct rank){ .number = r };
        strand_start(r, rank_main, &ranks[r]);
    }
    enum ending ending = strands_run(verbs_ripen);
    *feasible = ending != INFEASIBLE;
    if (ending == DEADLOCK) {
        strands_describe();
        strands_fault("no rank can continue");
    }
    strands_end_waits();
    if (ending != ALL_OVER) ending = strands_run(verbs_ripen);
    if (ending == ALL_OVER) {
        if (*feasible) verbs_end();
        return strands_get_fault();
    }
    strands_describe();
    return "a strand still waits after all waits were ended";
}
