/* The rows of bench_core and their goals. */
#include "tests/bench/cases.h"
#include <stdio.h>
#include <string.h>

static const size_t KI = 1 << 10, MI = 1 << 20;
static const char *const verbs[] = { "allreduce", "reduce_scatter", "allgather", "broadcast", "all_to_all", "reduce",
    "gather", "scatter", "send_recv" };
static const char *const besides[] = { "flag barrier", "ladder barrier", "flag ping-pong", "memcpy", "T_coh",
    "float32" };
const char *verb_name(enum verb verb) { return verbs[verb]; }
const char *beside_name(enum beside beside) { return besides[beside]; }

/* ---- goals: the ratio to the reference at most, on private and on shared tensors ---- */
/* For 64 MiB; those of allreduce are for 16 MiB and more. */
static const struct {
    enum verb verb;
    bool in_place;
    double on_private, on_shared;
} copies_at_64_mi[] = {
    { ALLREDUCE, true, 1.12, 0.52 },
    { ALLREDUCE, false, 1.45, 0.90 },
    { REDUCE_SCATTER, false, 0.92, 0.68 },
    { ALLGATHER, false, 1.12, 0.88 },
    { BROADCAST, true, 1.18, 0.95 },
    { BROADCAST, false, 1.18, 0.95 },
    { ALL_TO_ALL, false, 1.30, 1.05 },
    { SEND_RECV, false, 1.1, 1.0 },
};
static double copies_goal(const struct bench_case *c)
{
    if (c->verb == ALLREDUCE ? c->bytes < 16 * MI : c->bytes != 64 * MI) return 0;
    for (size_t i = 0; i < sizeof copies_at_64_mi / sizeof *copies_at_64_mi; i++)
        if (copies_at_64_mi[i].verb == c->verb && copies_at_64_mi[i].in_place == c->in_place)
            return c->shared ? copies_at_64_mi[i].on_shared : copies_at_64_mi[i].on_private;
    return 0;
}
static void set_goal_of_two(struct bench_case *c)
{
    if (c->verb == SEND_RECV && c->bytes < 4 * KI) {
        c->beside = PING_PONG;
        c->goal = c->bytes == 8 ? 2.5 : 0;
    } else if (c->bytes < 4 * KI) {
        c->beside = FLAG_BARRIER;
        c->goal = c->verb == ALLREDUCE && c->bytes <= 48 ? 1.25 : 0;
        c->goal_p99 = c->goal > 0 ? 3 : 0;
    } else if (c->verb == ALLREDUCE && c->bytes <= MI) {
        c->beside = COHERENCE;
        c->goal = c->shared ? 0 : 1.15;
    } else {
        c->beside = MEMCPY;
        c->goal = copies_goal(c);
    }
}
/* Sets the goal of a row of four or eight ranks. The goals are for a machine of two cores, so these ranks share
   cores. */
static void set_goal_of_more(struct bench_case *c)
{
    c->beside = c->bytes < 4 * KI ? BACKOFF_BARRIER : MEMCPY;
    if (c->bytes == 8) {
        c->goal = 1.25;
        c->goal_p99_us = 1000;
    } else if (c->bytes == 16 * MI && c->ranks == 4 && c->in_place) c->goal = c->shared ? 0.60 : 1.30;
}

double case_touched(const struct bench_case *c)
{
    double part = 1.0 / c->ranks;
    switch (c->verb) {
    case ALLREDUCE: return 1;
    case REDUCE_SCATTER: return (1 + part) / 2;
    case ALLGATHER: return c->in_place ? 0.5 : (part + 1) / 2;
    case BROADCAST: return c->in_place ? 0.5 : (part + 1) / 2;
    case ALL_TO_ALL: return 1;
    /* All input is read, and the root writes the result. */
    case REDUCE: return (1 + part) / 2;
    /* These are measured out of place only. One rank reads the bytes of a message, and the other one writes them. */
    case GATHER:
    case SCATTER:
    case SEND_RECV: return part;
    case VERBS: break;
    }
    return 0;
}
double case_crossing(const struct bench_case *c)
{
    double others = (c->ranks - 1.0) / c->ranks / (c->shared ? 2 : 1);
    switch (c->verb) {
    /* Bytes cross as input and as result. */
    case ALLREDUCE: return 2 * others;
    case REDUCE_SCATTER:
    case ALLGATHER:
    case ALL_TO_ALL:
    /* Only one rank sends or receives all, so the mean of the ranks is a part of that. */
    case BROADCAST:
    case REDUCE: return others;
    case GATHER:
    case SCATTER: return others / c->ranks;
    case SEND_RECV: return others;
    case VERBS: break;
    }
    return 0;
}

/* ---- rows ---- */
struct list { struct bench_case *at; int count; };
static void add(struct list *list, struct bench_case c)
{
    if (list->count == MOST_CASES) return;
    if (c.dtype != TUTTI_FLOAT32) {
        c.beside = FLOAT32;
        c.goal = 1.1;
    } else if (c.ranks == 2) set_goal_of_two(&c);
    else set_goal_of_more(&c);
    list->at[list->count++] = c;
}
static void add_size(struct list *list, struct bench_case c)
{
    bool only_out = c.verb == ALL_TO_ALL || c.verb == GATHER || c.verb == SCATTER || c.verb == SEND_RECV;
    for (int in_place = !only_out; in_place >= 0; in_place--)
        for (int shared = 0; shared <= (c.bytes >= 4 * KI); shared++) {
            c.in_place = in_place;
            c.shared = shared;
            add(list, c);
        }
}
int cases_list(struct bench_case out[MOST_CASES])
{
    const size_t most[] = { 8, 48, 256, KI, 4 * KI, 16 * KI, 64 * KI, 256 * KI, MI, 4 * MI, 16 * MI, 64 * MI,
        256 * MI },
                 some[] = { 8, 4 * KI, 64 * KI, MI, 16 * MI, 64 * MI, 256 * MI }, few[] = { 64 * KI, MI, 16 * MI };
    struct list list = { out, 0 };
    struct bench_case c = { .ranks = 2, .dtype = TUTTI_FLOAT32 };
    for (size_t i = 0; i < sizeof most / sizeof *most; i++) { c.bytes = most[i]; add_size(&list, c); }
    for (c.verb = REDUCE_SCATTER; c.verb < VERBS; c.verb++)
        for (size_t i = 0; i < sizeof some / sizeof *some; i++) { c.bytes = some[i]; add_size(&list, c); }
    for (int type = 0; type < 2; type++)
        for (int shared = 0; shared < 2; shared++)
            add(&list,
                (struct bench_case){
                    ALLREDUCE, 64 * MI, 2, type ? TUTTI_FLOAT16 : TUTTI_BFLOAT16, .in_place = true, .shared = shared });
    c.verb = ALLREDUCE;
    c.in_place = true;
    for (c.ranks = 4; c.ranks <= 8; c.ranks += 4) {
        c.shared = false;
        c.bytes = 8;
        add(&list, c);
        for (size_t i = 0; i < sizeof few / sizeof *few; i++)
            for (int shared = 0; shared < 2; shared++) {
                c.bytes = few[i];
                c.shared = shared;
                add(&list, c);
            }
    }
    return list.count;
}
void case_label(const struct bench_case *c, char *out, size_t capacity)
{
    const char *unit = c->bytes >= MI ? "M" : c->bytes >= KI ? "K" : "";
    size_t number = c->bytes >= MI ? c->bytes / MI : c->bytes >= KI ? c->bytes / KI : c->bytes;
    snprintf(out, capacity, "%s %zu%s %s %s %s %dranks", verb_name(c->verb), number, unit, c->in_place ? "in" : "out",
        c->shared ? "shared" : "private", tutti_dtype_name(c->dtype), c->ranks);
}
static bool has_word(const char *label, const char *word, size_t length)
{
    for (const char *at = label; (at = strstr(at, word)) != NULL; at++)
        if ((at == label || at[-1] == ' ') && (at[length] == '\0' || at[length] == ' ')) return true;
    return false;
}
bool case_has_words(const char *label, const char *words)
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
