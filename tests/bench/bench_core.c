/* The C core, through its public calls, beside what the machine can do: every goal of docs/performance.md that concerns
 * it is a row here. Ours and the reference take turns in one run; the owner dirties its buffer before every call; times
 * are those of the slowest rank, in µs.
 *
 *   bench_core                           everything (two minutes)
 *   bench_core --only 'allreduce 8'      rows whose label (see --list) has all these words; more --only: more rows
 *   bench_core --goals                   only rows that have a goal
 *   bench_core --list                    the labels
 *   bench_core --json FILE               also writes what was measured
 *   bench_core --algorithm NAME          of the collectives measured, instead of the default
 *   bench_core --samples 3               three times as many
 *   bench_core --unbound                 the system chooses the cores
 *
 * Columns: the median, the 99th percentile and the best; what is beside, and the ratio of both medians; the goal. Below
 * 4 KiB medians are of batches of calls, because a clock costs as much as they do, and the ratio is the median of those
 * of the turns. The 99th percentile is then that of calls timed one by one; its goal is a multiple of the reference's
 * median timed in the same way (in parentheses: what the 99th percentile of the reference itself comes to). "limit" is
 * what memory allows: all input read once and all output written once, at the rate of an update in place on all ranks
 * at once (below 4 KiB: the reference); or what has to cross between two cores, where that takes longer. outcome.h says
 * when a row is judged by it. "flag" is a bare flag barrier in ns before and after the row, which tells how near the
 * two cores were: about 60 where they share a level-3 cache, 200 to 400 where not. */
#include "backend/model/machine.h"
#include "tests/bench/calls.h"
#include "tests/bench/outcome.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 200, WARM_UP = 4000, LIMIT_S = 900, MOST_FILTERS = 16 };
enum { LEAST_COPIED = 4 << 20, MOST_CROSSED = 4 << 20 }; /* rows beside memcpy, and bytes, whose crossing is measured */
struct arguments {
    const char *only[MOST_FILTERS], *json, *algorithm;
    int only_count, samples;
    bool goals, list, unbound;
};
static struct arguments arguments = { .samples = 1 };
static struct bench_case cases[MOST_CASES];
static struct outcome *outcomes;                        /* of all ranks; rank 0 writes */
static int case_count, group_ranks;
static double third_cache_bytes;                        /* 0: unknown, or there is none */
static tutti_comm *comm;
static struct pair private_pair, shared_pair;

/* ---- small messages: batches, because a clock costs as much as they do ---- */
static void tiny_reference(enum beside beside)
{
    if (beside == PING_PONG) flag_there_and_back();
    else if (beside == BACKOFF_BARRIER) backoff_barrier();
    else flag_barrier();
}
/* Ours and the reference without and with pauses, in turns of a batch; who begins changes. Cores are moved at times:
   one turn takes a tenth of a millisecond, so most have all three at the same distance. */
static void measure_tiny(const struct bench_case *c, struct pair at, int samples)
{
    static const enum series turns[] = { OURS, BESIDE, BESIDE_OTHERWISE };
    for (int s = 0; s < samples; s++)
        for (int turn = 0; turn < 3; turn++) {
            enum series which = turns[(s + turn) % 3];
            flag_pauses = which == BESIDE_OTHERWISE;
            flag_barrier();
            double begin = now_ns();
            for (int k = 0; k < BATCH; k++) {
                if (which != OURS) { tiny_reference(c->beside); continue; }
                case_touch(at, k);
                case_call(c, at, c->dtype, comm);
            }
            sample_set(which, s, since_ns(begin) / BATCH);
        }
    flag_pauses = false;
}
static void time_calls(const struct bench_case *c, struct pair at, enum series which, int first, int count)
{
    flag_barrier();
    for (int k = first; k < first + count; k++) {
        case_touch(at, k);
        double begin = now_ns();
        if (which == BESIDE) tiny_reference(c->beside);
        else case_call(c, at, c->dtype, comm);
        call_set(which, k, since_ns(begin));
    }
}
static void measure_single_calls(const struct bench_case *c, struct pair at, int calls, struct outcome *out)
{
    time_calls(c, at, OURS, 0, calls < WARM_UP ? calls : WARM_UP);
    for (int k = 0; k + BATCH <= calls; k += BATCH) {   /* in turns as well */
        time_calls(c, at, OURS, k, BATCH);
        time_calls(c, at, BESIDE, k, BATCH);
    }
    flag_barrier();
    out->p99 = call_quantile(OURS, calls, 0.99);
    out->slowest = call_quantile(OURS, calls, 1);
    out->beside_p99 = call_quantile(BESIDE, calls, 0.99);
    out->beside_single = call_quantile(BESIDE, calls, 0.5);
    flag_barrier();
}

/* ---- large ones: one by one ---- */
static void measure_copy(const struct bench_case *c, int s)
{
    if (c->verb == SEND_RECV && measure_rank > 0) {     /* the copier works alone, as the pair of ranks does */
        flag_barrier();
        sample_set(BESIDE, s, 0);
        return;
    }
    dirty(private_pair.in, c->bytes, s);
    double begin = begin_together();
    memcpy(private_pair.out, private_pair.in, c->bytes);
    __asm__ volatile("" ::"r"(private_pair.out) : "memory");
    sample_set(BESIDE, s, since_ns(begin));
}
static void measure_call(const struct bench_case *c, struct pair at, tutti_dtype dtype, enum series series, int s)
{
    case_dirty(c, at, s);
    double begin = begin_together();
    case_call(c, at, dtype, comm);
    sample_set(series, s, since_ns(begin));
}
static void measure_reference(const struct bench_case *c, struct pair at, int s)
{
    switch (c->beside) {
    case FLOAT32: measure_call(c, at, TUTTI_FLOAT32, BESIDE, s); return;
    case COHERENCE:
        sample_set(BESIDE, s, coherent_ns(private_pair.in, c->bytes, false));
        if (coherent_can_stream()) sample_set(BESIDE_OTHERWISE, s, coherent_ns(private_pair.in, c->bytes, true));
        return;
    default: measure_copy(c, s);
    }
}
/* Bytes that cross between the two cores in one turn; 0: that is not measured. What is staged always crosses. A shared
   tensor does while caches hold it; a greater one may come from memory. */
static size_t crossed(const struct bench_case *c)
{
    bool wanted = c->beside == COHERENCE || (c->beside == MEMCPY && c->bytes >= LEAST_COPIED);
    bool crosses = !c->shared || (double)c->bytes * c->ranks <= third_cache_bytes;
    size_t all = (size_t)((double)c->bytes * case_crossing(c));
    if (!wanted || !crosses || c->ranks != 2) return 0;
    return all < MOST_CROSSED ? all : MOST_CROSSED;
}
static int crossing_ways(const struct bench_case *c) /* a small row would lose to a long ring what it has in caches */
{
    return crossed(c) == 0 ? 0 : c->beside == COHERENCE ? CROSSING_SHORT_WAYS : CROSSING_WAYS;
}
static void measure_large(const struct bench_case *c, struct pair at, int samples)
{
    for (int s = 0; s < samples; s++) {
        measure_call(c, at, c->dtype, OURS, s);
        flag_barrier();
        measure_reference(c, at, s);
        flag_barrier();
        dirty(private_pair.in, c->bytes, s);
        sample_set(UPDATE, s, update_ns(private_pair.in, c->bytes));
        flag_barrier();
        for (int way = 0; way < crossing_ways(c); way++)
            sample_set((enum series)(CROSSING + way), s, crossing_ns(private_pair.in, crossed(c), way));
    }
}

/* ---- a row ---- */
static int samples_of(const struct bench_case *c)
{
    static const struct {
        size_t bytes;
        int samples;
    } most[] = { { TINY, 60 }, { 65537, 200 }, { (1 << 20) + 1, 100 }, { (4 << 20) + 1, 40 }, { (16 << 20) + 1, 20 },
        { (64 << 20) + 1, 12 } };
    int samples = 6;
    for (int i = (int)(sizeof most / sizeof *most) - 1; i >= 0; i--)
        if (c->bytes < most[i].bytes) samples = most[i].samples;
    samples *= arguments.samples;
    return samples < MOST_SAMPLES ? samples : MOST_SAMPLES;
}
static double better(enum series one, enum series other, int samples)
{
    double a = sample_quantile(one, samples, 0.5), b = sample_quantile(other, samples, 0.5);
    return a < b ? a : b;
}
/* By the best way, for all that has to cross. */
static double crossing_of(const struct bench_case *c, int samples)
{
    double best = 0, all = (double)c->bytes * case_crossing(c);
    for (int way = 0; way < crossing_ways(c); way++) {
        double took = sample_quantile((enum series)(CROSSING + way), samples, 0.5) * all / (double)crossed(c);
        if (way == 0 || took < best) best = took;
    }
    return best;
}
static void summarise_tiny(int samples, struct outcome *out)
{
    double plain = sample_ratio(OURS, BESIDE, samples), paused = sample_ratio(OURS, BESIDE_OTHERWISE, samples);
    out->beside = better(BESIDE, BESIDE_OTHERWISE, samples);
    out->ratio = plain > paused ? plain : paused;
    out->memory = out->beside;                          /* has the rest from single calls */
}
static void summarise(const struct bench_case *c, int samples, struct outcome *out)
{
    out->measured = true;
    out->median = sample_quantile(OURS, samples, 0.5);
    out->best = sample_quantile(OURS, samples, 0);
    if (c->bytes < TINY) {
        summarise_tiny(samples, out);
        return;
    }
    bool both = c->beside == COHERENCE && coherent_can_stream();
    out->beside = better(BESIDE, both ? BESIDE_OTHERWISE : BESIDE, samples);
    out->ratio = out->median / out->beside;
    out->memory = sample_quantile(UPDATE, samples, 0.5) * case_touched(c);
    out->crossing = crossing_of(c, samples);
    out->p99 = sample_quantile(OURS, samples, 0.99);
    out->slowest = sample_quantile(OURS, samples, 1);
    out->beside_p99 = sample_quantile(BESIDE, samples, 0.99);
    out->beside_single = out->beside;
}
static void measure_case(int index)
{
    const struct bench_case *c = &cases[index];
    struct pair at = case_pair(c, private_pair, shared_pair);
    int samples = samples_of(c);
    struct outcome outcome = { .flag = flag_barrier_ns() };
    if (c->bytes < TINY) {
        measure_single_calls(c, at, samples * BATCH < MOST_CALLS ? samples * BATCH : MOST_CALLS, &outcome);
        measure_tiny(c, at, samples);
    } else {
        if (!arguments.algorithm) case_settle(c, at, comm);
        measure_large(c, at, 2);                        /* to warm up */
        measure_large(c, at, samples);
    }
    outcome.flag_after = flag_barrier_ns();
    flag_barrier();
    if (measure_rank == 0) {
        summarise(c, samples, &outcome);
        outcomes[index] = outcome;
        outcome_print(c, &outcome);
    }
    flag_barrier();
}

/* ---- which rows ---- */
static bool is_selected(const struct bench_case *c)
{
    char label[96];
    case_label(c, label, sizeof label);
    if (arguments.goals && c->goal <= 0) return false;
    bool selected = arguments.only_count == 0;
    for (int i = 0; i < arguments.only_count; i++) selected |= case_has_words(label, arguments.only[i]);
    return selected;
}
static void select_cases(void)
{
    int kept = 0;
    case_count = cases_list(cases);
    for (int i = 0; i < case_count; i++)
        if (is_selected(&cases[i])) cases[kept++] = cases[i];
    case_count = kept;
}

/* ---- the ranks of a group of rows ---- */
static void allocate(void)
{
    size_t most = 4096;
    bool shared = false;
    for (int i = 0; i < case_count; i++)
        if (cases[i].ranks == group_ranks) {
            if (cases[i].bytes > most) most = cases[i].bytes;
            shared |= cases[i].shared;
        }
    char *all = measure_map(2 * (most + 4096), false);
    private_pair = (struct pair){ all, all + most + 4096 };
    if (!shared) return;
    void *in, *out;
    must(tutti_mem_alloc(&in, most));
    must(tutti_mem_alloc(&out, most));
    shared_pair = (struct pair){ in, out };
    memset(in, 0, most);
    memset(out, 0, most);
}
static void rank_main(void *context)
{
    const tutti_unique_id *id = context;
    must(tutti_comm_init_rank(&comm, group_ranks, *id, measure_rank));
    allocate();
    memset(private_pair.in, 0, (size_t)(private_pair.out - private_pair.in) * 2);
    for (int v = 0; arguments.algorithm && v < SEND_RECV; v++)
        for (int i = 0; i < case_count; i++)
            if (cases[i].verb == (enum verb)v && cases[i].ranks == group_ranks) {
                must(tutti_comm_set_algorithm(comm, verb_name((enum verb)v), arguments.algorithm));
                break;
            }
    for (int i = 0; i < case_count; i++)
        if (cases[i].ranks == group_ranks) measure_case(i);
    must(tutti_comm_destroy(comm));
}

/* ---- results ---- */
static bool write_json(void)
{
    FILE *file = fopen(arguments.json, "w");
    if (!file) { perror(arguments.json); return false; }
    fprintf(file, "{\"cores\": %d, \"rows\": [", measure_cores());
    const char *comma = "";
    for (int i = 0; i < case_count; i++) {
        if (!outcomes[i].measured) continue;
        fprintf(file, "%s\n ", comma);
        outcome_write(file, &cases[i], &outcomes[i]);
        comma = ",";
    }
    fprintf(file, "\n]}\n");
    bool written = !ferror(file);
    return fclose(file) == 0 && written;
}
static void print_verdict(void)
{
    int met = 0, goals = 0;
    for (int i = 0; i < case_count; i++)
        if (outcomes[i].measured && cases[i].goal > 0) {
            goals++;
            met += outcome_is_met(&cases[i], &outcomes[i]);
        }
    if (goals) printf("goals met: %d of %d\n", met, goals);
}
static void parse(int count, char **words)
{
    for (int i = 1; i < count; i++) {
        if (!strcmp(words[i], "--only") && arguments.only_count < MOST_FILTERS)
            arguments.only[arguments.only_count++] = measure_option(count, words, &i);
        else if (!strcmp(words[i], "--json")) arguments.json = measure_option(count, words, &i);
        else if (!strcmp(words[i], "--algorithm")) arguments.algorithm = measure_option(count, words, &i);
        else if (!strcmp(words[i], "--samples")) arguments.samples = atoi(measure_option(count, words, &i));
        else if (!strcmp(words[i], "--goals")) arguments.goals = true;
        else if (!strcmp(words[i], "--list")) arguments.list = true;
        else if (!strcmp(words[i], "--unbound")) arguments.unbound = true;
        else {
            fprintf(stderr, "what is %s? The first lines of tests/bench/bench_core.c say what there is\n", words[i]);
            exit(2);
        }
    }
    if (arguments.samples < 1) arguments.samples = 1;
}
int main(int count, char **words)
{
    bool good = true;
    char label[96];
    parse(count, words);
    select_cases();
    third_cache_bytes = cache_level_bytes(3);
    for (int i = 0; i < case_count && arguments.list; i++) {
        case_label(&cases[i], label, sizeof label);
        printf("%s\n", label);
    }
    if (arguments.list) return 0;
    if (!case_count) { fprintf(stderr, "no row has all these words; --list shows them\n"); return 2; }
    outcomes = measure_map(sizeof *outcomes * MOST_CASES, true);
    outcome_print_header();
    for (int i = 0; i < case_count; i++) {
        tutti_unique_id id;
        if (cases[i].ranks == group_ranks) continue;
        group_ranks = cases[i].ranks;
        must(tutti_get_unique_id(&id));
        good &= measure_run(group_ranks, !arguments.unbound, LIMIT_S, rank_main, &id);
    }
    print_verdict();
    if (arguments.json) good &= write_json();
    return good ? 0 : 1;
}
