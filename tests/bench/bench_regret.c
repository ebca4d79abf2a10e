/* Measures what the library's own choices cost. For each collective, size and kind of tensors, the time of the
 * library's choice is divided by the time of the best variant: of all algorithms, tile sizes, numbers of slots and ways
 * to write slots (knobs.c). Variants that cannot differ for a row are left out.
 *
 *   bench_regret                         2 ranks (a quarter of an hour)
 *   bench_regret --ranks 4               4 ranks
 *   bench_regret --only 'allreduce 64K'  rows whose label has all these words; another --only adds rows
 *   bench_regret --samples 3             takes three times as many samples
 *   bench_regret --single-copy           tries single copies of private tensors, too: twice as many variants
 *   bench_regret --finalists             also prints the medians of all finalists
 *   bench_regret --json FILE             also writes what was measured
 *
 * The groups of all setups exist side by side, and all variants take turns in one run. A visit to a variant begins with
 * enough calls to bring its slots into the caches, as in use: otherwise the slots of a hundred groups would have
 * evicted each other. Before each timed call the ranks read their outputs and write their inputs, as programs do
 * between calls. After two visits to every variant, those with the best visit are the finalists, which are compared by
 * the median of the slowest rank.
 *
 * The best of many variants is partly the luckiest one, in its samples and in where its memory lies. So no variant is
 * judged by the samples for which it was picked: the best one on the even visits is compared with the choice on the odd
 * visits, which use other groups of the same setups, and the other way round. "regret" is the geometric mean of both
 * ratios. The groups of a setup differ by some percent as long as they live, so each setup has four of them. Regret can
 * fall below 1, and an uncertain pick makes it too small. "most" is the choice's median divided by the best median, of
 * all samples; luck makes it too large. "twin" is the choice's median on its odd visits divided by that on its even
 * visits; it differs from 1 by chance only. "spread" is the distance of the quartiles divided by the median, of the
 * choice and of the best. "flag" is a bare flag barrier in ns before and after the row, which shows how near the cores
 * are. A row during which the cores were moved is measured again, twice at most. */
#include "tests/bench/calls.h"
#include "tests/bench/inside.h"
#include "tests/bench/knobs.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BATCH = 50,
    LIVES = 4,
    LOOKS = 2,
    FINALISTS = 10,
    MOST_TIMES = 2048,
    MOST_ROWS = 256,
    MOST_FILTERS = 16,
    LIMIT_S = 3600
};
/* A visit begins with calls that are no samples, until all slots have been used: ROUND_BYTES in all, or WARM_CALLS
   calls of a tiny row. An A/B test that runs when inside_hold stops the tuner is over after HELD_CALLS. */
enum { ROUND_BYTES = 4 << 20, WARM_CALLS = 20, HELD_CALLS = 100 };
/* A row is measured at most TURNS times, until the cores were not moved meanwhile. */
enum { TURNS = 3 };
/* Regret up to GOOD counts as good. */
static const double GOOD = 1.05;
/* For rows of fewer than `below` bytes: the visits to each variant, and the calls of a visit, each of which is a
   sample. */
struct effort { size_t below; int visits, calls; };
struct outcome {
    double choice, best, regret, most, twin, choice_spread, best_spread, flag, flag_after;
    char chosen[VARIANT_BYTES], winner[VARIANT_BYTES];
    int variants;
};
static struct shared_mapping {                                  /* shared by all ranks */
    double sample[MOST_VARIANTS][MOST_RANKS][MOST_TIMES];
    int finalist[FINALISTS];
    struct outcome outcome[MOST_ROWS];
    /* The cores were moved during the row. */
    bool moved;
} *common;
static struct arguments {
    const char *only[MOST_FILTERS], *json;
    int only_count, samples, ranks;
    bool single_copy, finalists;
} arguments = { .samples = 1, .ranks = 2 };
static struct bench_case rows[MOST_ROWS];
static int row_count, setup_count, variant_count, cores;
static struct setup setups[MOST_SETUPS];
static tutti_unique_id ids[MOST_SETUPS][LIVES];
/* The groups of a setup differ by chance only. */
static tutti_comm *comms[MOST_SETUPS][LIVES];
static struct variant variants[MOST_VARIANTS];
/* True while only the finalists are visited. */
static bool is_final;
static struct pair private_pair, shared_pair;

/* ---- samples ---- */
static struct effort effort_of(const struct bench_case *c)
{
    static const struct effort most[] = { { TINY, 16, 6 }, { (64 << 10) + 1, 12, 20 }, { (1 << 20) + 1, 12, 8 },
        { (4 << 20) + 1, 12, 3 }, { (16 << 20) + 1, 32, 1 }, { SIZE_MAX, 24, 1 } };
    const struct effort *e = most;
    while (c->bytes >= e->below) e++;
    struct effort found = *e;
    found.visits *= arguments.samples;
    while (found.visits * found.calls > MOST_TIMES) found.visits -= LIVES;
    return found;
}
/* Lets the tuner of each group of CHOICE come to its choice, and stops the tuner then: this choice is judged. */
static void settle(const struct bench_case *c)
{
    struct pair at = case_pair(c, private_pair, shared_pair);
    for (int life = 0; life < LIVES; life++) {
        inside_hold(comms[CHOICE][life], false);
        case_settle(c, at, comms[CHOICE][life]);
        inside_hold(comms[CHOICE][life], true);
        case_repeat(c, at, comms[CHOICE][life], HELD_CALLS);
    }
}
/* Takes the samples of one visit. Below TINY bytes each one is the mean of a batch of calls. */
static void visit(const struct variant *v, const struct bench_case *c, int number, int calls)
{
    struct pair at = case_pair(c, private_pair, shared_pair);
    tutti_comm *comm = comms[v->setup][number % LIVES];
    double *out = &common->sample[v - variants][measure_rank][number * calls];
    int batch = c->bytes < TINY ? BATCH : 1;
    int warm = c->bytes > ROUND_BYTES ? is_final : c->bytes < TINY ? WARM_CALLS : (int)(ROUND_BYTES / c->bytes);
    if (v->algorithm) must(tutti_comm_set_algorithm(comm, verb_name(c->verb), v->algorithm));
    case_dirty(c, at, number);
    for (int k = 0; k < warm; k++) case_call(c, at, c->dtype, comm);
    for (int k = 0; k < calls; k++) {
        case_use(c, at);
        case_dirty(c, at, k);
        double begin = begin_together();
        for (int b = 0; b < batch; b++) {
            if (batch > 1) case_touch(at, b);
            case_call(c, at, c->dtype, comm);
        }
        out[k] = since_ns(begin) / batch;
    }
    flag_barrier();
}
/* Writes the times of the slowest rank to `out`, those of visits of one parity, or of all visits (parity 2). Returns
   their number. */
static int gather_times(int variant, const struct effort *e, int parity, double *out)
{
    int count = 0;
    for (int i = 0; i < e->visits * e->calls; i++) {
        if (parity < 2 && i / e->calls % 2 != parity) continue;
        out[count] = 0;
        for (int r = 0; r < measure_ranks; r++) out[count] = fmax(out[count], common->sample[variant][r][i]);
        count++;
    }
    return count;
}
static double middle(int variant, const struct effort *e, int parity)
{
    static double times[MOST_TIMES];
    return median_of(times, gather_times(variant, e, parity, times));
}
static double spread(int variant, const struct effort *e)
{
    static double times[MOST_TIMES];
    int count = gather_times(variant, e, 2, times);
    double median = median_of(times, count);
    return (times[count * 3 / 4] - times[count / 4]) / median;
}

/* ---- from all variants to a few ---- */
static double best_visit(int variant, int calls)
{
    struct effort one = { 0, LOOKS, calls };
    double best = 1e30;
    for (int parity = 0; parity < LOOKS; parity++) best = fmin(best, middle(variant, &one, parity));
    return best;
}
/* Picks the choice and the fastest of the other variants. */
static void pick_finalists(int calls)
{
    bool taken[MOST_VARIANTS] = { [CHOICE] = true };
    static double best[MOST_VARIANTS];
    for (int v = 0; v < variant_count; v++) best[v] = best_visit(v, calls);
    common->finalist[CHOICE] = CHOICE;
    for (int f = CHOICE + 1; f < FINALISTS; f++) {
        int fastest = -1;
        for (int v = 0; v < variant_count; v++)
            if (!taken[v] && (fastest < 0 || best[v] < best[fastest])) fastest = v;
        common->finalist[f] = fastest;                  /* -1: no further one */
        if (fastest >= 0) taken[fastest] = true;
    }
}
/* Visits variants in another order each time, which is the same on all ranks: what a variant finds in the caches
   depends on the one before it. */
static void visit_all(const struct bench_case *c, const int *which, int count, int number, int calls)
{
    int order[MOST_VARIANTS];
    unsigned short seed[3] = { (unsigned short)number, (unsigned short)count, (unsigned short)c->verb };
    for (int i = 0; i < count; i++) {
        int j = (int)(nrand48(seed) % (i + 1));
        order[i] = order[j];
        order[j] = which ? which[i] : i;
    }
    for (int i = 0; i < count; i++) visit(&variants[order[i]], c, number, calls);
}
static void compare(const struct bench_case *c)
{
    struct effort e = effort_of(c);
    /* Of two laps the first one only fills the caches. */
    int laps = c->bytes > ROUND_BYTES ? 1 : 2;
    is_final = false;
    for (int s = 0; s < laps * LOOKS; s++) visit_all(c, NULL, variant_count, s % LOOKS, e.calls);
    if (measure_rank == 0) pick_finalists(e.calls);
    flag_barrier();
    int count = 0;
    while (count < FINALISTS && common->finalist[count] >= 0) count++;
    is_final = true;
    for (int s = 0; s < (laps - 1) * LIVES; s++) visit_all(c, common->finalist, count, s, e.calls);
    for (int s = 0; s < e.visits; s++) visit_all(c, common->finalist, count, s, e.calls);
}

/* ---- the outcome ---- */
static int fastest_of(const struct effort *e, int parity)
{
    int best = CHOICE;
    for (int f = 0; f < FINALISTS && common->finalist[f] >= 0; f++)
        if (middle(common->finalist[f], e, parity) < middle(best, e, parity)) best = common->finalist[f];
    return best;
}
/* Returns the choice's median divided by that of the variant that is fastest on visits of the other parity. */
static double on_other_half(const struct effort *e, int parity)
{
    return middle(CHOICE, e, !parity) / middle(fastest_of(e, parity), e, !parity);
}
static void summarise(const struct bench_case *c, struct outcome *out)
{
    struct effort e = effort_of(c);
    int best = fastest_of(&e, 2);
    out->choice = middle(CHOICE, &e, 2);
    out->best = middle(best, &e, 2);
    out->regret = sqrt(on_other_half(&e, 0) * on_other_half(&e, 1));
    out->most = out->choice / out->best;
    out->twin = middle(CHOICE, &e, 1) / middle(CHOICE, &e, 0);
    out->choice_spread = spread(CHOICE, &e);
    out->best_spread = spread(best, &e);
    out->variants = variant_count;
    inside_choice(comms[CHOICE][0], verb_name(c->verb), out->chosen, sizeof out->chosen);
    variant_name(&variants[best], setups, out->winner);
}
static void print_header(const struct bench_case *c)
{
    printf("\n%s%s, %d ranks on %d cores, us\n%8s %-8s %-25s %9s %7s %-34s %9s %7s %7s %6s %6s %9s\n",
        verb_name(c->verb), c->in_place ? " in place" : "", c->ranks, cores, "bytes", "tensors", "chosen", "median",
        "spread", "best", "median", "spread", "regret", "most", "twin", "flag");
}
static void print_row(const struct bench_case *c, const struct outcome *o)
{
    printf("%8zu %-8s %-25s %9.2f %6.0f%% %-34s %9.2f %6.0f%% %7.3f %6.2f %6.2f %4.0f %4.0f%s\n", c->bytes,
        c->shared ? "shared" : "private", o->chosen, o->choice / 1e3, 100 * o->choice_spread, o->winner, o->best / 1e3,
        100 * o->best_spread, o->regret, o->most, o->twin, o->flag, o->flag_after, o->regret > GOOD ? "  !" : "");
    fflush(stdout);
}
static void print_finalists(const struct bench_case *c)
{
    struct effort e = effort_of(c);
    char name[VARIANT_BYTES];
    for (int f = 0; f < FINALISTS && common->finalist[f] >= 0; f++) {
        int v = common->finalist[f];
        variant_name(&variants[v], setups, name);
        printf("%19s%-34s %9.2f; halves %9.2f %9.2f; spread %3.0f%%\n", "", name, middle(v, &e, 2) / 1e3,
            middle(v, &e, 0) / 1e3, middle(v, &e, 1) / 1e3, 100 * spread(v, &e));
    }
}
static void measure_row(int index)
{
    const struct bench_case *c = &rows[index];
    variant_count = variants_list(c, setups, setup_count, variants);
    struct outcome outcome = { 0 };
    for (int i = 0; i < TURNS && (!i || common->moved); i++) {
        outcome.flag = flag_barrier_ns();
        settle(c);
        compare(c);
        outcome.flag_after = flag_barrier_ns();
        if (measure_rank == 0) common->moved = flag_has_moved(outcome.flag, outcome.flag_after);
        flag_barrier();
    }
    if (measure_rank == 0) {
        summarise(c, &outcome);
        common->outcome[index] = outcome;
        if (index == 0 || rows[index - 1].verb != c->verb) print_header(c);
        print_row(c, &outcome);
        if (arguments.finalists) print_finalists(c);
    }
    flag_barrier();
}

/* ---- the ranks ---- */
static void allocate(size_t most)
{
    void *in, *out;
    char *own = measure_map(2 * most, false);
    private_pair = (struct pair){ own, own + most };
    must(tutti_mem_alloc(&in, most));
    must(tutti_mem_alloc(&out, most));
    shared_pair = (struct pair){ in, out };
    memset(own, 0, 2 * most);
    memset(in, 0, most);
    memset(out, 0, most);
}
static void rank_main(void *context)
{
    size_t most = TINY;
    (void)context;
    for (int i = 0; i < row_count; i++) most = rows[i].bytes > most ? rows[i].bytes : most;
    for (int s = 0; s < setup_count; s++) {
        setup_apply(&setups[s]);
        for (int life = 0; life < LIVES; life++)
            must(tutti_comm_init_rank(&comms[s][life], arguments.ranks, ids[s][life], measure_rank));
    }
    allocate(most);
    for (int i = 0; i < row_count; i++) measure_row(i);
}

/* ---- which rows ---- */
static void add_row(enum verb verb, size_t bytes, bool shared)
{
    bool out_of_place = verb == ALL_TO_ALL || verb == GATHER || verb == SCATTER || verb == SEND_RECV;
    struct bench_case c = { verb, bytes, arguments.ranks, TUTTI_FLOAT32, !out_of_place, shared, FLAG_BARRIER, 0, 0, 0 };
    char label[96];
    bool selected = arguments.only_count == 0;
    case_label(&c, label, sizeof label);
    for (int i = 0; i < arguments.only_count; i++) selected |= case_has_words(label, arguments.only[i]);
    if (selected && row_count < MOST_ROWS) rows[row_count++] = c;
}
static void list_rows(void)
{
    static const size_t sizes[] = { 64, 512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20,
        64 << 20 };
    for (int verb = 0; verb < VERBS; verb++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !(verb == SEND_RECV && arguments.ranks > 2); i++)
            for (int shared = 0; shared < 2; shared++) add_row((enum verb)verb, sizes[i], shared);
}

/* ---- results ---- */
static void print_verdict(void)
{
    int good = 0, worst = 0;
    double sum = 0;
    char label[96];
    for (int i = 0; i < row_count; i++) {
        const struct outcome *o = &common->outcome[i];
        good += o->regret <= GOOD;
        sum += o->regret / row_count;
        if (o->regret > common->outcome[worst].regret) worst = i;
    }
    case_label(&rows[worst], label, sizeof label);
    printf("\nregret at most %.2f in %d of %d rows (%.0f %%); mean %.3f, worst %.2f (%s)\n", GOOD, good, row_count,
        100.0 * good / row_count, sum, common->outcome[worst].regret, label);
}
static bool write_json(void)
{
    FILE *file = fopen(arguments.json, "w");
    if (!file) { perror(arguments.json); return false; }
    fprintf(file, "{\"cores\": %d, \"ranks\": %d, \"samples\": %d, \"single_copy\": %s, \"good\": %g, \"rows\": [",
        cores, arguments.ranks, arguments.samples, arguments.single_copy ? "true" : "false", GOOD);
    for (int i = 0; i < row_count; i++) {
        const struct bench_case *c = &rows[i];
        const struct outcome *o = &common->outcome[i];
        fprintf(file,
            "%s\n {\"case\": \"%s\", \"bytes\": %zu, \"in_place\": %s, \"shared\": %s, \"choice\": \"%s\", "
            "\"choice_us\": %.4f, \"choice_spread\": %.4f, \"best\": \"%s\", \"best_us\": %.4f, \"best_spread\": %.4f, "
            "\"regret\": %.4f, \"most\": %.4f, \"twin\": %.4f, \"variants\": %d, \"flag_ns\": %.1f, "
            "\"flag_after_ns\": %.1f}",
            i ? "," : "", verb_name(c->verb), c->bytes, c->in_place ? "true" : "false", c->shared ? "true" : "false",
            o->chosen, o->choice / 1e3, o->choice_spread, o->winner, o->best / 1e3, o->best_spread, o->regret, o->most,
            o->twin, o->variants, o->flag, o->flag_after);
    }
    fprintf(file, "\n]}\n");
    bool written = !ferror(file);
    return fclose(file) == 0 && written;
}
static void parse(int count, char **words)
{
    for (int i = 1; i < count; i++) {
        if (!strcmp(words[i], "--only") && arguments.only_count < MOST_FILTERS)
            arguments.only[arguments.only_count++] = measure_option(count, words, &i);
        else if (!strcmp(words[i], "--json")) arguments.json = measure_option(count, words, &i);
        else if (!strcmp(words[i], "--samples")) arguments.samples = atoi(measure_option(count, words, &i));
        else if (!strcmp(words[i], "--ranks")) arguments.ranks = atoi(measure_option(count, words, &i));
        else if (!strcmp(words[i], "--single-copy")) arguments.single_copy = true;
        else if (!strcmp(words[i], "--finalists")) arguments.finalists = true;
        else {
            fprintf(stderr, "%s is no option; the first lines of tests/bench/bench_regret.c list them\n", words[i]);
            exit(2);
        }
    }
    if (arguments.samples < 1) arguments.samples = 1;
    if (arguments.ranks < 2 || arguments.ranks > MOST_RANKS) arguments.ranks = 2;
}
int main(int count, char **words)
{
    parse(count, words);
    /* Later each rank is bound to one core. */
    cores = measure_cores();
    list_rows();
    if (!row_count) { fprintf(stderr, "no row has all these words, as in 'allreduce 64K in private'\n"); return 2; }
    setup_count = setups_list(arguments.single_copy, setups);
    common = measure_map(sizeof *common, true);
    for (int s = 0; s < setup_count; s++)
        for (int life = 0; life < LIVES; life++) must(tutti_get_unique_id(&ids[s][life]));
    bool good = measure_run(arguments.ranks, arguments.ranks <= measure_cores(), LIMIT_S, rank_main, NULL);
    if (good) print_verdict();
    if (good && arguments.json) good = write_json();
    return good ? 0 : 1;
}
