/* The settings and algorithms with which bench_regret compares the library's choice. */
#include "tests/bench/knobs.h"
#include "backend/base/settings.h"
#include "tests/bench/inside.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_VALUES = 5, STREAM_AT_LEAST = 2048 };
/* The values of each setting, and the words for them in the name of a variant. TUTTI_STREAMING: 0 streams nothing, 1
   streams slots, and -1 streams slots where that proves faster; 1 and -1 also stream outputs that no cache holds.
   Single copy doubles the variants of rows with private tensors, so it is tried only on request. */
static const struct {
    const char *setting, *value[MOST_VALUES], *word[MOST_VALUES];
    int count;
    bool when_asked;
} knobs[KNOBS] = {
    { "TUTTI_TILE_BYTES", { "32768", "65536", "131072", "262144", "524288" }, { "32K", "64K", "128K", "256K", "512K" },
        5, false },
    { "TUTTI_SLOTS", { "2", "3", "4" }, { "x2", "x3", "x4" }, 3, false },
    { "TUTTI_STREAMING", { "-1", "0", "1" }, { "", " stored", " streamed" }, 3, false },
    { "TUTTI_SINGLE_COPY", { "0", "1" }, { "", " single" }, 2, true },
};

/* ---- setups ---- */
/* Sets the next combination of values; the last knob changes fastest. Returns false after the last combination. */
static bool next_setup(struct setup *s, bool single_copy)
{
    for (int k = KNOBS - 1; k >= 0; k--) {
        int count = knobs[k].when_asked && !single_copy ? 1 : knobs[k].count;
        if (++s->value[k] < count) return true;
        s->value[k] = 0;
    }
    return false;
}
int setups_list(bool single_copy, struct setup out[MOST_SETUPS])
{
    int count = SHORT;
    struct setup s = { .asked = true };
    out[CHOICE] = (struct setup){ .asked = false };
    do out[count++] = s;
    while (next_setup(&s, single_copy) && count < MOST_SETUPS);
    return count;
}
void setup_apply(const struct setup *setup)
{
    for (int k = 0; k < KNOBS; k++) {
        if (setup->asked) setenv(knobs[k].setting, knobs[k].value[setup->value[k]], 1);
        else unsetenv(knobs[k].setting);
    }
    settings_reload();
}

/* ---- variants ---- */
/* Returns false if an earlier setup runs the row in the same way: with tiles that hold the whole row, with as many
   slots as the row has tiles, or with ways to write and to read that short runs never take. Messages have neither tiles
   nor slots. */
static bool can_differ(const struct bench_case *c, const struct setup *s)
{
    size_t tile = strtoull(knobs[TILE_BYTES].value[s->value[TILE_BYTES]], NULL, 10), tiles = (c->bytes - 1) / tile + 1;
    size_t slots = strtoull(knobs[SLOTS].value[s->value[SLOTS]], NULL, 10);
    if (s->value[TILE_BYTES] && (c->verb == SEND_RECV || tile / 2 >= c->bytes)) return false;
    if (s->value[SLOTS] && (c->verb == SEND_RECV || slots > tiles)) return false;
    if (s->value[STREAMING] && c->bytes < STREAM_AT_LEAST) return false;
    return !(s->value[SINGLE_COPY] && (c->shared || c->bytes < STREAM_AT_LEAST));
}
static int add_algorithms(const struct bench_case *c, int setup, struct variant *out, int room)
{
    int count = 0;
    if (c->verb == SEND_RECV && room) out[count++] = (struct variant){ setup, NULL };
    const char *name;
    for (int i = 0; count < room && (name = inside_candidate(verb_name(c->verb), i)) != NULL; i++)
        out[count++] = (struct variant){ setup, name };
    return count;
}
int variants_list(const struct bench_case *c, const struct setup *setups, int setup_count,
    struct variant out[MOST_VARIANTS])
{
    int count = 1;
    out[CHOICE] = (struct variant){ CHOICE, NULL };
    for (int s = SHORT; s < setup_count; s++)
        if (can_differ(c, &setups[s])) count += add_algorithms(c, s, out + count, MOST_VARIANTS - count);
    return count;
}
void variant_name(const struct variant *v, const struct setup *setups, char out[VARIANT_BYTES])
{
    const struct setup *s = &setups[v->setup];
    int used = snprintf(out, VARIANT_BYTES, "%s ", !s->asked ? "choice" : v->algorithm ? v->algorithm : "messages");
    for (int k = 0; k < KNOBS && s->asked && used < VARIANT_BYTES; k++)
        used += snprintf(out + used, (size_t)(VARIANT_BYTES - used), "%s", knobs[k].word[s->value[k]]);
}
