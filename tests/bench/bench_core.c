/* Measures the C core, through its public calls, beside what the machine can do. Every goal of docs/performance.md that
 * concerns the core is a row here. tutti and the reference of a row take turns in one run. Each rank writes its buffer
 * before every call. Times are those of the slowest rank, in µs.
 *
 *   bench_core                           everything (two minutes)
 *   bench_core --only 'allreduce 8'      rows whose label (see --list) has all these words; another --only adds rows
 *   bench_core --goals                   only rows that have a goal
 *   bench_core --list                    prints the labels
 *   bench_core --json FILE               also writes what was measured, after each row
 *   bench_core --json FILE --continue    keeps the rows that FILE has, and measures the others
 *   bench_core --algorithm NAME          runs the collectives by this algorithm instead of the library's choice
 *   bench_core --samples 3               takes three times as many samples
 *   bench_core --retries 120             takes rows again for at most some 120 s in all
 *   bench_core --unbound                 lets the system choose the cores
 *
 * Columns: the median, the 99th percentile and the best of tutti; the name and the median of the reference ("beside");
 * the ratio of both medians; tutti's median divided by the limit; the goal; and the flag barrier. Below 4 KiB medians
 * are of batches of calls, because reading a clock costs as much as a call, and the ratio is the median of the ratios
 * of the turns. The 99th percentile is then that of calls timed one by one. Its goal is a multiple of the reference's
 * median timed in the same way; the 99th percentile of the reference, as such a multiple, stands in parentheses. The
 * limit is the longer of two times. memory: all input is read once and all output is written once, at the rate of an
 * update in place on all ranks at once (below 4 KiB: the reference). crossing: the bytes that must go from core to core
 * do so. outcome.h says when a row is judged by its limit. "flag" is a bare flag barrier in ns before and after the
 * row, which shows how near the two cores were: about 60 if they share a level-3 cache, otherwise 200 to 400. If the
 * two differ by more than FLAG_MOVED, the hypervisor has moved the cores. Then the row is printed as moved and measured
 * again, three times in all. A row whose cores moved each time counts as neither met nor missed. */
#include "backend/model/machine.h"
#include "tests/bench/calls.h"
#include "tests/bench/outcome.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 200, WARM_UP = 4000, LIMIT_S = 900, MOST_FILTERS = 16 };
/* Bytes. Rows beside memcpy have a measured crossing from LEAST_COPIED on. It is measured with MOST_CROSSED bytes at
   most. */
enum { LEAST_COPIED = 4 << 20, MOST_CROSSED = 4 << 20 };
struct arguments {
    const char *only[MOST_FILTERS], *json, *algorithm;
    int only_count, samples, retries_s;
    bool goals, list, unbound, continues;
};
static struct arguments arguments = { .samples = 1 };
static struct bench_case cases[MOST_CASES];
static struct outcome *outcomes;                        /* shared by all ranks, written by rank 0 */
/* The objects in the file of results of the rows that an earlier run has measured; NULL for the other rows. */
static char *kept[MOST_CASES];
static int case_count, group_ranks;
static double third_cache_bytes;                        /* 0: unknown or absent */
/* The cores of this program. A rank is pinned to one of them. */
static int cores;
static tutti_comm *comm;
static struct pair private_pair, shared_pair;

/* ---- small messages: batches, because a clock costs as much as they do ---- */
static void tiny_reference(enum beside beside)
{
    if (beside == PING_PONG) flag_there_and_back();
    else if (beside == BACKOFF_BARRIER) backoff_barrier();
    else flag_barrier();
}
/* Samples tutti, and the reference without and with pauses, in turns of a batch; each turn begins with another of the
   three. The hypervisor moves cores at times. A turn takes a tenth of a millisecond, so in most turns all three have
   the cores at the same distance. */
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
    for (int k = 0; k + BATCH <= calls; k += BATCH) {
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
/* Samples memcpy on all ranks at once, but beside a send on rank 0 only, because a message moves its bytes once. */
static void measure_copy(const struct bench_case *c, int s)
{
    if (c->verb == SEND_RECV && measure_rank > 0) {
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
/* Returns the bytes that cross between the two cores in one sample, or 0 if the crossing of this row is not measured. A
   staged tensor always crosses. A shared tensor crosses if the caches hold it; a greater one may come from memory. */
static size_t crossed(const struct bench_case *c)
{
    bool wanted = c->beside == COHERENCE || (c->beside == MEMCPY && c->bytes >= LEAST_COPIED);
    bool crosses = !c->shared || (double)c->bytes * c->ranks <= third_cache_bytes;
    size_t all = (size_t)((double)c->bytes * case_crossing(c));
    if (!wanted || !crosses || c->ranks != 2) return 0;
    return all < MOST_CROSSED ? all : MOST_CROSSED;
}
/* Returns the number of ways in which the crossing is measured. A small row takes the short ring only: a long one would
   evict the row's buffers from the caches. */
static int crossing_ways(const struct bench_case *c)
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

/* ---- results ---- */
static void write_rows(FILE *file)
{
    fprintf(file, "{\"cores\": %d, \"rows\": [", cores);
    const char *comma = "";
    for (int i = 0; i < case_count; i++) {
        if (!kept[i] && !outcomes[i].measured) continue;
        fprintf(file, "%s\n ", comma);
        if (kept[i]) fputs(kept[i], file);
        else outcome_write(file, &cases[i], &outcomes[i]);
        comma = ",";
    }
    fprintf(file, "\n]}\n");
}
/* Replaces the file of results at once, so that it is complete whenever the run is interrupted. */
static bool write_json(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s.new", arguments.json);
    FILE *file = fopen(path, "w");
    if (!file) { perror(path); return false; }
    write_rows(file);
    bool written = !ferror(file);
    written = fclose(file) == 0 && written && rename(path, arguments.json) == 0;
    if (!written) perror(arguments.json);
    return written;
}
/* Keeps the rows that the file of results has. A file that is missing has none. */
static void keep_rows(void)
{
    enum { MOST_BYTES = MOST_CASES * 2048 };
    FILE *file = fopen(arguments.json, "r");
    if (!file) return;
    char *text = measure_map(MOST_BYTES + 1, false);
    text[fread(text, 1, MOST_BYTES, file)] = '\0';
    fclose(file);
    int count = 0;
    for (int i = 0; i < case_count; i++) count += (kept[i] = outcome_find(text, &cases[i])) != NULL;
    printf("%d of %d rows are kept from %s\n", count, case_count, arguments.json);
}

/* ---- a row ---- */
/* Returns true if the tries after the first ones of all rows have taken less than the budget. */
static bool is_in_budget(void)
{
    double ns = 0;
    for (int i = 0; i < case_count; i++) ns += outcomes[i].retried_ns;
    return arguments.retries_s == 0 || ns < arguments.retries_s * 1e9;
}
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
/* Returns the ns of the best way, scaled to all bytes that must cross. */
static double crossing_of(const struct bench_case *c, int samples)
{
    double best = 0, all = (double)c->bytes * case_crossing(c);
    for (int way = 0; way < crossing_ways(c); way++) {
        double took = sample_quantile((enum series)(CROSSING + way), samples, 0.5) * all / (double)crossed(c);
        if (way == 0 || took < best) best = took;
    }
    return best;
}
/* Sets the figures that come from batches. measure_single_calls has set the others. */
static void summarise_tiny(int samples, struct outcome *out)
{
    double plain = sample_ratio(OURS, BESIDE, samples), paused = sample_ratio(OURS, BESIDE_OTHERWISE, samples);
    out->beside = better(BESIDE, BESIDE_OTHERWISE, samples);
    out->ratio = plain > paused ? plain : paused;
    out->memory = out->beside;
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
static void measure_once(const struct bench_case *c, struct outcome *out)
{
    struct pair at = case_pair(c, private_pair, shared_pair);
    int samples = samples_of(c);
    double begin = now_ns();
    *out = (struct outcome){ .flag = flag_barrier_ns(), .tries = out->tries + 1, .retried_ns = out->retried_ns };
    if (c->bytes < TINY) {
        measure_single_calls(c, at, samples * BATCH < MOST_CALLS ? samples * BATCH : MOST_CALLS, out);
        measure_tiny(c, at, samples);
    } else {
        if (!arguments.algorithm) case_settle(c, at, comm);
        /* The first two samples only warm up: later ones overwrite them. */
        measure_large(c, at, 2);
        measure_large(c, at, samples);
    }
    out->flag_after = flag_barrier_ns();
    flag_barrier();
    if (measure_rank == 0) summarise(c, samples, out);
    if (out->tries > 1) out->retried_ns += since_ns(begin);
}
/* Measures a row, and measures it again if the cores moved meanwhile. Rank 0 decides, because each rank times its own
   flag barriers. */
static void measure_case(int index)
{
    struct outcome outcome = { 0 };
    do {
        measure_once(&cases[index], &outcome);
        if (measure_rank == 0) {
            outcome.again = outcome_wants_retry(&outcome, is_in_budget());
            outcomes[index] = outcome;
            outcome_print(&cases[index], &outcome);
        }
        flag_barrier();
    } while (outcomes[index].again);
    if (measure_rank == 0 && arguments.json) write_json();
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
    int selected = 0;
    case_count = cases_list(cases);
    for (int i = 0; i < case_count; i++)
        if (is_selected(&cases[i])) cases[selected++] = cases[i];
    case_count = selected;
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
        if (cases[i].ranks == group_ranks && !kept[i]) measure_case(i);
    must(tutti_comm_destroy(comm));
}

/* ---- results: the verdict ---- */
static void print_verdict(void)
{
    struct outcome_counts counts = { 0 };
    for (int i = 0; i < case_count; i++)
        if (kept[i]) outcome_count_written(kept[i], &counts);
        else if (outcomes[i].measured) outcome_count(&cases[i], &outcomes[i], &counts);
    if (counts.met + counts.missed) printf("goals met: %d of %d\n", counts.met, counts.met + counts.missed);
    if (counts.moved) printf("goals not judged, because the cores moved in each try: %d\n", counts.moved);
}
static void parse(int count, char **words)
{
    for (int i = 1; i < count; i++) {
        if (!strcmp(words[i], "--only") && arguments.only_count < MOST_FILTERS)
            arguments.only[arguments.only_count++] = measure_option(count, words, &i);
        else if (!strcmp(words[i], "--json")) arguments.json = measure_option(count, words, &i);
        else if (!strcmp(words[i], "--algorithm")) arguments.algorithm = measure_option(count, words, &i);
        else if (!strcmp(words[i], "--samples")) arguments.samples = atoi(measure_option(count, words, &i));
        else if (!strcmp(words[i], "--retries")) arguments.retries_s = atoi(measure_option(count, words, &i));
        else if (!strcmp(words[i], "--goals")) arguments.goals = true;
        else if (!strcmp(words[i], "--continue")) arguments.continues = true;
        else if (!strcmp(words[i], "--list")) arguments.list = true;
        else if (!strcmp(words[i], "--unbound")) arguments.unbound = true;
        else {
            fprintf(stderr, "%s is no option; the first lines of tests/bench/bench_core.c list them\n", words[i]);
            exit(2);
        }
    }
    if (arguments.samples < 1) arguments.samples = 1;
    if (!arguments.continues || arguments.json) return;
    fprintf(stderr, "--continue needs --json FILE, the file whose rows are kept\n");
    exit(2);
}
int main(int count, char **words)
{
    bool good = true;
    char label[96];
    parse(count, words);
    cores = measure_cores();
    select_cases();
    third_cache_bytes = cache_level_bytes(3);
    for (int i = 0; i < case_count && arguments.list; i++) {
        case_label(&cases[i], label, sizeof label);
        printf("%s\n", label);
    }
    if (arguments.list) return 0;
    if (!case_count) { fprintf(stderr, "no label has all these words; --list prints the labels\n"); return 2; }
    outcomes = measure_map(sizeof *outcomes * MOST_CASES, true);
    if (arguments.continues) keep_rows();
    outcome_print_header();
    for (int i = 0; i < case_count; i++) {
        tutti_unique_id id;
        if (cases[i].ranks == group_ranks || kept[i]) continue;
        group_ranks = cases[i].ranks;
        must(tutti_get_unique_id(&id));
        good &= measure_run(group_ranks, !arguments.unbound, LIMIT_S, rank_main, &id);
    }
    print_verdict();
    if (arguments.json) good &= write_json();
    return good ? 0 : 1;
}
