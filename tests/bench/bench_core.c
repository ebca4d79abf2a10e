/* The C core, through its public calls, beside what the machine can do: every goal of docs/performance.md that concerns
 * it is a row here. Ours and the reference take turns in one run; the owner dirties its buffer before every call; times
 * are those of the slowest rank, in µs.
 *
 *   bench_core                           everything (a minute)
 *   bench_core --only 'allreduce 8'      rows whose label (see --list) has all these words; more --only: more rows
 *   bench_core --goals                   only rows that have a goal
 *   bench_core --list                    the labels
 *   bench_core --json FILE               also writes what was measured
 *   bench_core --algorithm NAME          of the collectives measured, instead of the default
 *   bench_core --samples 3               three times as many
 *   bench_core --unbound                 the system chooses the cores
 *
 * Columns: the median, the 99th percentile and the best; what is beside, and the ratio of both medians; the goal. Below
 * 4 KiB medians are of batches of calls, because a clock costs as much as they do, and the 99th percentile is that of
 * calls timed one by one; its goal is a multiple of the reference's median timed in the same way (in parentheses: what
 * the 99th percentile of the reference itself comes to). "limit" is what memory allows: all input read once and all
 * output written once, at the rate of an update in place on all ranks at once (below 4 KiB: the reference). "flag" is
 * a bare flag barrier in ns before and after the row, which tells how near the two cores were: about 60 where they
 * share a level-3 cache, 200 to 400 where not. */
#include "tests/bench/cases.h"
#include "tests/bench/measure.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 200, WARM_UP = 4000, LIMIT_S = 900, MOST_FILTERS = 16 };
enum { TINY = 4096 };                                   /* below so many bytes calls are timed in batches */
struct outcome {                                        /* in ns; single: the median of calls timed one by one   */
    bool measured;
    double median, p99, best, slowest, beside, beside_p99, beside_single, limit, flag, flag_after;
};
struct arguments {
    const char *only[MOST_FILTERS], *json, *algorithm;
    int only_count, samples;
    bool goals, list, unbound;
};
static struct arguments arguments = { .samples = 1 };
static struct bench_case cases[MOST_CASES];
static struct outcome *outcomes;                        /* of all ranks; rank 0 writes */
static int case_count, group_ranks;
static tutti_comm *comm;
static struct pair { char *in, *out; } private_pair, shared_pair;

/* ---- the calls ---- */
static void call_send_recv(const char *in, char *out, size_t n, tutti_dtype dtype, bool back)
{
    if (measure_rank == 0) must(tutti_send(in, n, dtype, 1, 0, comm, NULL));
    if (measure_rank == 1) must(tutti_recv(out, n, dtype, 0, 0, comm, NULL));
    if (!back) return;
    if (measure_rank == 1) must(tutti_send(in, n, dtype, 0, 0, comm, NULL));
    if (measure_rank == 0) must(tutti_recv(out, n, dtype, 1, 0, comm, NULL));
}
static void call(const struct bench_case *c, struct pair at, tutti_dtype dtype)
{
    size_t n = c->bytes / tutti_dtype_bytes(dtype), ranks = (size_t)c->ranks, part = n / ranks > 0 ? n / ranks : 1;
    size_t own = (size_t)measure_rank * part * tutti_dtype_bytes(dtype);
    switch (c->verb) {
    case ALLREDUCE: must(tutti_all_reduce(at.in, at.out, n, dtype, TUTTI_SUM, comm, NULL)); return;
    case BROADCAST: must(tutti_broadcast(at.in, at.out, n, dtype, 0, comm, NULL)); return;
    case ALL_TO_ALL: must(tutti_all_to_all(at.in, at.out, part, dtype, comm, NULL)); return;
    case REDUCE_SCATTER:
        must(tutti_reduce_scatter(at.in, c->in_place ? at.in + own : at.out, part, dtype, TUTTI_SUM, comm, NULL));
        return;
    case ALLGATHER: must(tutti_all_gather(c->in_place ? at.out + own : at.in, at.out, part, dtype, comm, NULL)); return;
    case REDUCE: must(tutti_reduce(at.in, at.out, n, dtype, TUTTI_SUM, 0, comm, NULL)); return;
    case GATHER: must(tutti_gather(at.in, at.out, part, dtype, 0, comm, NULL)); return;
    case SCATTER: must(tutti_scatter(at.in, at.out, part, dtype, 0, comm, NULL)); return;
    case SEND_RECV: call_send_recv(at.in, at.out, n, dtype, c->bytes < TINY); return;
    case VERBS: return;
    }
}
static struct pair pair_of(const struct bench_case *c)
{
    struct pair at = c->shared ? shared_pair : private_pair;
    if (c->in_place) at.out = at.in;
    return at;
}
/* The buffer from which this rank sends. */
static void dirty_input(const struct bench_case *c, struct pair at, int seed)
{
    size_t bytes = c->verb == ALLGATHER || c->verb == GATHER ? c->bytes / (size_t)c->ranks : c->bytes;
    size_t own = c->verb == ALLGATHER && c->in_place ? (size_t)measure_rank * bytes : 0;
    dirty(at.in + own, bytes, measure_rank + seed);
}

/* ---- small messages: batches, because a clock costs as much as they do ---- */
static void write_first(struct pair at, int value)
{
    float number = (float)value;
    memcpy(at.in, &number, sizeof number);
}
static void tiny_reference(enum beside beside)
{
    if (beside == PING_PONG) flag_there_and_back();
    else if (beside == LADDER_BARRIER) ladder_barrier();
    else flag_barrier();
}
static void measure_tiny(const struct bench_case *c, struct pair at, int samples)
{
    for (int s = 0; s < samples; s++) {
        flag_barrier();
        double begin = now_ns();
        for (int k = 0; k < BATCH; k++) {
            write_first(at, k);
            call(c, at, c->dtype);
        }
        sample_set(OURS, s, since_ns(begin) / BATCH);
        for (int pauses = 0; pauses < 2; pauses++) {
            flag_pauses = pauses;
            flag_barrier();
            begin = now_ns();
            for (int k = 0; k < BATCH; k++) tiny_reference(c->beside);
            sample_set(pauses ? BESIDE_OTHERWISE : BESIDE, s, since_ns(begin) / BATCH);
        }
    }
}
static void time_calls(const struct bench_case *c, struct pair at, int calls, bool reference)
{
    flag_barrier();
    for (int k = 0; k < calls; k++) {
        write_first(at, k);
        double begin = now_ns();
        if (reference) tiny_reference(c->beside);
        else call(c, at, c->dtype);
        call_set(k, since_ns(begin));
    }
    flag_barrier();
}
static void measure_single_calls(const struct bench_case *c, struct pair at, int calls, struct outcome *out)
{
    time_calls(c, at, calls < WARM_UP ? calls : WARM_UP, false);
    time_calls(c, at, calls, false);
    out->p99 = call_quantile(calls, 0.99);
    out->slowest = call_quantile(calls, 1);
    flag_barrier();
    time_calls(c, at, calls, true);
    out->beside_p99 = call_quantile(calls, 0.99);
    out->beside_single = call_quantile(calls, 0.5);
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
    dirty_input(c, at, s);
    double begin = begin_together();
    call(c, at, dtype);
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
static void summarise(const struct bench_case *c, int samples, struct outcome *out)
{
    out->measured = true;
    out->median = sample_quantile(OURS, samples, 0.5);
    out->best = sample_quantile(OURS, samples, 0);
    out->beside = sample_quantile(BESIDE, samples, 0.5);
    if (c->bytes < TINY || (c->beside == COHERENCE && coherent_can_stream())) {
        double otherwise = sample_quantile(BESIDE_OTHERWISE, samples, 0.5);
        if (otherwise < out->beside) out->beside = otherwise;
    }
    out->limit = c->bytes < TINY ? out->beside : sample_quantile(UPDATE, samples, 0.5) * case_touched(c);
    if (c->bytes < TINY) return;                        /* has the rest from single calls */
    out->p99 = sample_quantile(OURS, samples, 0.99);
    out->slowest = sample_quantile(OURS, samples, 1);
    out->beside_p99 = sample_quantile(BESIDE, samples, 0.99);
    out->beside_single = out->beside;
}
static bool is_met(const struct bench_case *c, const struct outcome *o)
{
    return o->median <= c->goal * o->beside && (c->goal_p99 <= 0 || o->p99 <= c->goal_p99 * o->beside_single)
        && (c->goal_p99_us <= 0 || o->p99 < c->goal_p99_us * 1e3);
}
static void print_header(void)
{
    printf("%-44s %11s %11s %11s  %-14s %11s %6s %7s  %-25s %9s\n", "times in us, of the slowest rank", "median", "p99",
        "best", "beside", "median", "ratio", "/ limit", "goal", "flag");
    fflush(stdout);
}
static void print_row(const struct bench_case *c, const struct outcome *o)
{
    char label[96], goal[64] = "", flag[32];
    case_label(c, label, sizeof label);
    if (c->goal > 0) {
        int length = snprintf(goal, sizeof goal, "%.2f", c->goal);
        char *more = goal + length;
        size_t room = sizeof goal - (size_t)length;
        if (c->goal_p99 > 0)
            snprintf(more, room, ", p99 %.1f (%.1f) <= %g", o->p99 / o->beside_single, o->beside_p99 / o->beside_single,
                c->goal_p99);
        if (c->goal_p99_us > 0) snprintf(more, room, ", p99 < %g", c->goal_p99_us);
    }
    snprintf(flag, sizeof flag, "%.0f, %.0f", o->flag, o->flag_after);
    printf("%-44s %11.3f %11.3f %11.3f  %-14s %11.3f %6.2f %7.2f  %-25s %9s  %s\n", label, o->median / 1e3,
        o->p99 / 1e3, o->best / 1e3, beside_name(c->beside), o->beside / 1e3, o->median / o->beside,
        o->median / o->limit, goal, flag,
        c->goal <= 0       ? ""
            : is_met(c, o) ? "met"
                           : "MISSED");
    fflush(stdout);
}
static void measure_case(int index)
{
    const struct bench_case *c = &cases[index];
    struct pair at = pair_of(c);
    int samples = samples_of(c);
    struct outcome outcome = { .flag = flag_barrier_ns() };
    if (c->bytes < TINY) {
        measure_single_calls(c, at, samples * BATCH < MOST_CALLS ? samples * BATCH : MOST_CALLS, &outcome);
        measure_tiny(c, at, samples);
    } else {
        measure_large(c, at, 2);                        /* to warm up */
        measure_large(c, at, samples);
    }
    outcome.flag_after = flag_barrier_ns();
    flag_barrier();
    if (measure_rank == 0) {
        summarise(c, samples, &outcome);
        outcomes[index] = outcome;
        print_row(c, &outcome);
    }
    flag_barrier();
}

/* ---- which rows ---- */
static bool has_word(const char *label, const char *word, size_t length)
{
    for (const char *at = label; (at = strstr(at, word)) != NULL; at++)
        if ((at == label || at[-1] == ' ') && (at[length] == '\0' || at[length] == ' ')) return true;
    return false;
}
static bool has_all_words(const char *label, const char *words)
{
    char word[64];
    for (size_t length; words += strspn(words, " "), (length = strcspn(words, " ")) > 0; words += length) {
        if (length >= sizeof word) return false;
        memcpy(word, words, length);
        word[length] = '\0';
        if (!has_word(label, word, length)) return false;
    }
    return true;
}
static bool is_selected(const struct bench_case *c)
{
    char label[96];
    case_label(c, label, sizeof label);
    if (arguments.goals && c->goal <= 0) return false;
    bool selected = arguments.only_count == 0;
    for (int i = 0; i < arguments.only_count; i++) selected |= has_all_words(label, arguments.only[i]);
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
static void write_case(FILE *file, const struct bench_case *c)
{
    fprintf(file,
        "\n {\"case\": \"%s\", \"bytes\": %zu, \"ranks\": %d, \"dtype\": \"%s\", \"in_place\": %s, "
        "\"shared\": %s, \"beside\": \"%s\", \"goal\": %g, \"goal_p99\": %g, \"goal_p99_us\": %g, ",
        verb_name(c->verb), c->bytes, c->ranks, tutti_dtype_name(c->dtype), c->in_place ? "true" : "false",
        c->shared ? "true" : "false", beside_name(c->beside), c->goal, c->goal_p99, c->goal_p99_us);
}
static bool write_json(void)
{
    FILE *file = fopen(arguments.json, "w");
    if (!file) { perror(arguments.json); return false; }
    fprintf(file, "{\"cores\": %d, \"rows\": [", measure_cores());
    const char *comma = "";
    for (int i = 0; i < case_count; i++) {
        const struct bench_case *c = &cases[i];
        const struct outcome *o = &outcomes[i];
        if (!o->measured) continue;
        fputs(comma, file);
        write_case(file, c);
        fprintf(file,
            "\"median_us\": %.4f, \"p99_us\": %.4f, \"best_us\": %.4f, \"slowest_us\": %.4f, "
            "\"beside_us\": %.4f, \"beside_p99_us\": %.4f, \"beside_single_us\": %.4f, \"ratio\": %.4f, "
            "\"limit_us\": %.4f, \"flag_ns\": %.1f, \"flag_after_ns\": %.1f, \"met\": %s}",
            o->median / 1e3, o->p99 / 1e3, o->best / 1e3, o->slowest / 1e3, o->beside / 1e3, o->beside_p99 / 1e3,
            o->beside_single / 1e3, o->median / o->beside, o->limit / 1e3, o->flag, o->flag_after,
            c->goal <= 0       ? "null"
                : is_met(c, o) ? "true"
                               : "false");
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
            met += is_met(&cases[i], &outcomes[i]);
        }
    if (goals) printf("goals met: %d of %d\n", met, goals);
}
static const char *value(int count, char **words, int *at)
{
    if (*at + 1 < count) return words[++*at];
    fprintf(stderr, "%s needs a value\n", words[*at]);
    exit(2);
}
static void parse(int count, char **words)
{
    for (int i = 1; i < count; i++) {
        if (!strcmp(words[i], "--only") && arguments.only_count < MOST_FILTERS)
            arguments.only[arguments.only_count++] = value(count, words, &i);
        else if (!strcmp(words[i], "--json")) arguments.json = value(count, words, &i);
        else if (!strcmp(words[i], "--algorithm")) arguments.algorithm = value(count, words, &i);
        else if (!strcmp(words[i], "--samples")) arguments.samples = atoi(value(count, words, &i));
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
    for (int i = 0; i < case_count && arguments.list; i++) {
        case_label(&cases[i], label, sizeof label);
        printf("%s\n", label);
    }
    if (arguments.list) return 0;
    if (!case_count) { fprintf(stderr, "no row has all these words; --list shows them\n"); return 2; }
    outcomes = measure_map(sizeof *outcomes * MOST_CASES, true);
    print_header();
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
