/* Judges, prints and writes rows of bench_core. A row is judged in one place only, outcome_judge. */
#include "tests/bench/outcome.h"
#include "tests/bench/measure.h"
#include <string.h>

/* ---- judging ---- */
double outcome_limit(const struct outcome *o) { return o->crossing > o->memory ? o->crossing : o->memory; }
const char *outcome_judge(const struct bench_case *c, const struct outcome *o)
{
    bool moves_bytes = c->beside == MEMCPY || c->beside == COHERENCE || c->beside == FLOAT32;
    bool has_limit = c->goal > 0 && moves_bytes;
    return !has_limit || LIMIT_GOAL * outcome_limit(o) <= c->goal * o->beside ? "goal"
        : o->crossing > o->memory                                             ? "crossing"
                                                                              : "memory";
}
bool outcome_is_met(const struct bench_case *c, const struct outcome *o)
{
    if (strcmp(outcome_judge(c, o), "goal")) return o->median <= LIMIT_GOAL * outcome_limit(o);
    return o->ratio <= c->goal && (c->goal_p99 <= 0 || o->p99 <= c->goal_p99 * o->beside_single)
        && (c->goal_p99_us <= 0 || o->p99 < c->goal_p99_us * 1e3);
}
bool outcome_has_moved(const struct outcome *o) { return flag_has_moved(o->flag, o->flag_after); }
bool outcome_wants_retry(const struct outcome *o, bool in_budget)
{
    return outcome_has_moved(o) && o->tries < OUTCOME_TRIES && in_budget;
}
const char *outcome_verdict(const struct bench_case *c, const struct outcome *o)
{
    if (outcome_has_moved(o)) return "moved";
    return c->goal <= 0 ? "" : outcome_is_met(c, o) ? "met" : "MISSED";
}
void outcome_count(const struct bench_case *c, const struct outcome *o, struct outcome_counts *counts)
{
    if (c->goal <= 0) return;
    if (outcome_has_moved(o)) counts->moved++;
    else if (outcome_is_met(c, o)) counts->met++;
    else counts->missed++;
}

/* ---- printing ---- */
void outcome_print_header(void)
{
    printf("%-44s %11s %11s %11s  %-14s %11s %6s %7s  %-25s %9s\n", "times in us, of the slowest rank", "median", "p99",
        "best", "beside", "median", "ratio", "/ limit", "goal", "flag");
    fflush(stdout);
}
static void goal_format(const struct bench_case *c, const struct outcome *o, char *out, size_t capacity)
{
    const char *judge = outcome_judge(c, o);
    if (c->goal <= 0) out[0] = '\0';
    else if (strcmp(judge, "goal")) snprintf(out, capacity, "%.2f x %s", LIMIT_GOAL, judge);
    else if (c->goal_p99 > 0)
        snprintf(out, capacity, "%.2f, p99 %.1f (%.1f) <= %g", c->goal, o->p99 / o->beside_single,
            o->beside_p99 / o->beside_single, c->goal_p99);
    else if (c->goal_p99_us > 0) snprintf(out, capacity, "%.2f, p99 < %g", c->goal, c->goal_p99_us);
    else snprintf(out, capacity, "%.2f", c->goal);
}
void outcome_print(const struct bench_case *c, const struct outcome *o)
{
    char label[96], goal[64], flag[32];
    case_label(c, label, sizeof label);
    goal_format(c, o, goal, sizeof goal);
    snprintf(flag, sizeof flag, "%.0f, %.0f", o->flag, o->flag_after);
    printf("%-44s %11.3f %11.3f %11.3f  %-14s %11.3f %6.2f %7.2f  %-25s %9s  %s%s\n", label, o->median / 1e3,
        o->p99 / 1e3, o->best / 1e3, beside_name(c->beside), o->beside / 1e3, o->ratio, o->median / outcome_limit(o),
        goal, flag, outcome_verdict(c, o), o->again ? ", taken again" : "");
    fflush(stdout);
}

/* ---- writing ---- */
void outcome_write(FILE *file, const struct bench_case *c, const struct outcome *o)
{
    char label[96];
    case_label(c, label, sizeof label);
    fprintf(file,
        "{\"label\": \"%s\", \"case\": \"%s\", \"bytes\": %zu, \"ranks\": %d, \"dtype\": \"%s\", \"in_place\": %s, "
        "\"shared\": %s, \"beside\": \"%s\", \"goal\": %g, \"goal_p99\": %g, \"goal_p99_us\": %g, ",
        label, verb_name(c->verb), c->bytes, c->ranks, tutti_dtype_name(c->dtype), c->in_place ? "true" : "false",
        c->shared ? "true" : "false", beside_name(c->beside), c->goal, c->goal_p99, c->goal_p99_us);
    fprintf(file,
        "\"median_us\": %.4f, \"p99_us\": %.4f, \"best_us\": %.4f, \"slowest_us\": %.4f, "
        "\"beside_us\": %.4f, \"beside_p99_us\": %.4f, \"beside_single_us\": %.4f, \"ratio\": %.4f, "
        "\"limit_us\": %.4f, \"crossing_us\": %.4f, \"flag_ns\": %.1f, \"flag_after_ns\": %.1f, ",
        o->median / 1e3, o->p99 / 1e3, o->best / 1e3, o->slowest / 1e3, o->beside / 1e3, o->beside_p99 / 1e3,
        o->beside_single / 1e3, o->ratio, o->memory / 1e3, o->crossing / 1e3, o->flag, o->flag_after);
    bool moved = outcome_has_moved(o);
    fprintf(file, "\"judged_by\": \"%s\", \"tries\": %d, \"moved\": %s, \"met\": %s}", outcome_judge(c, o), o->tries,
        moved ? "true" : "false",
        c->goal <= 0 || moved      ? "null"
            : outcome_is_met(c, o) ? "true"
                                   : "false");
}

/* ---- reading what was written ---- */
char *outcome_find(const char *text, const struct bench_case *c)
{
    char label[96], begin[128];
    case_label(c, label, sizeof label);
    snprintf(begin, sizeof begin, "{\"label\": \"%s\", ", label);
    const char *at = strstr(text, begin);
    size_t length = at ? strcspn(at, "\n") : 0;
    if (length && at[length - 1] == ',') length--;
    return length && at[length - 1] == '}' ? strndup(at, length) : NULL;
}
void outcome_count_written(const char *object, struct outcome_counts *counts)
{
    if (strstr(object, "\"goal\": 0, ")) return;
    if (strstr(object, "\"moved\": true")) counts->moved++;
    else if (strstr(object, "\"met\": true")) counts->met++;
    else counts->missed++;
}
