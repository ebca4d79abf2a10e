/* Checks the invariants of backend/agree/agree.h in a state of the world, and packs states into bytes. */
#include "tests/unit/agree/world.h"
#include <string.h>

/* ---- invariants ---- */
static bool causes_equal(const struct agree_cause *x, const struct agree_cause *y)
{
    return !agree_cause_precedes(x, y) && !agree_cause_precedes(y, x);
}
static const char *check_decision(const struct world *w, const struct agree_cause *c)
{
    const unsigned char *found = w->found[c->reporter];
    int other = c->other;
    if (found[0] != c->kind + 1 || found[1] != c->operation || found[2] != other + 1)
        return "I4: a cause that its reporter has not found";
    if (c->kind == AGREE_LOST && !w->dead[other] && !w->broke)
        return "I5: a rank that lives, or has left, is reported as dead";
    if (c->kind == AGREE_LEFT_ALONE && !(w->left[other] && w->operation[other] < (int)c->operation))
        return "I5: a rank that has not left, or has done its part, is reported as left";
    if (c->kind == AGREE_DISAGREEMENT && c->calls[1].number
        && (c->calls[0].number != c->operation || c->calls[1].number != c->operation
            || c->calls[0].declaration[0] == c->calls[1].declaration[0]))
        return "I6: a disagreement without two calls that differ";
    return NULL;
}
/* True if a rank of host h that lives, or that left after the decision, reports the decision of its host. */
static bool host_reports_decision(const struct world *w, int h)
{
    for (int r = 0; r < RANKS; r++)
        if (host(w, r) == h && (lives(w, r) || w->told[r]) && w->has_decision[h]) return true;
    return false;
}
const char *world_check(const struct world *w, const struct scenario *s)
{
    for (int h = 0; h < HOSTS; h++) {
        const char *broken = w->has_decision[h] ? check_decision(w, &w->decision[h]) : NULL;
        if (broken) return broken;
    }
    for (int r = 0; r < RANKS; r++)
        if (lives(w, r) && w->object[r].state == AGREE_OVER
            && !causes_equal(&w->object[r].held, &w->decision[host(w, r)]))
            return "I1: two causes on one host";
    for (int h = 1; h < HOSTS && s->haste != HASTY && !w->broke; h++)
        for (int g = 0; g < h; g++)
            if (host_reports_decision(w, g) && host_reports_decision(w, h)
                && !causes_equal(&w->decision[g], &w->decision[h]))
                return "I2: two hosts report two causes";
    return NULL;
}
bool world_is_final(const struct world *w, const struct scenario *s)
{
    int living = 0, over = 0, resting = 0;
    for (int r = 0; r < RANKS; r++) {
        if (!lives(w, r)) continue;
        living++;
        over += w->object[r].state == AGREE_OVER;
        resting += w->object[r].state == AGREE_RUNS && w->at[r] == BETWEEN && s->program[r][w->operation[r]] == REST;
    }
    return over == living || resting == living;
}
/* True if two ranks have begun an operation with different calls, and at least one of them lives. */
static bool disagrees(const struct world *w, const struct scenario *s)
{
    for (int r = 0; r < RANKS; r++)
        for (int q = 0; q < r; q++)
            for (int n = 1; n <= w->operation[r] && n <= w->operation[q]; n++)
                if (called(s, r, n) != called(s, q, n) && (lives(w, r) || lives(w, q))) return true;
    return false;
}
const char *world_check_final(const struct world *w, const struct scenario *s)
{
    bool harmless = !s->deaths && !s->aborts && !s->breaks && !s->stops, differ = disagrees(w, s);
    bool equal = true;
    for (int n = 0; n <= OPERATIONS; n++)
        for (int r = 1; r < RANKS; r++) equal &= s->program[r][n] == s->program[0][n];
    for (int r = 0; r < RANKS; r++) {
        if (!lives(w, r)) continue;
        const struct agree_cause *decision = &w->decision[host(w, r)];
        if (w->object[r].state != AGREE_OVER && !differ) continue;
        if (w->object[r].state != AGREE_OVER) return "I6: ranks differ, and one does not report it";
        if (harmless && equal) return "I5: a failure without a reason";
        if (harmless && differ && decision->kind != AGREE_DISAGREEMENT)
            return "I6: ranks differ, and another cause is reported";
        if (harmless && differ && s->haste != HASTY && !decision->calls[1].number && lives(w, decision->other))
            return "I6: a disagreement without the call of the other rank";
    }
    return NULL;
}

/* ---- states as bytes ---- */
/* Eight words are packed together: a byte whose bits show which words are not zero, and then those words. */
static bool is_zero(const uint64_t words[8])
{
    return !(words[0] | words[1] | words[2] | words[3] | words[4] | words[5] | words[6] | words[7]);
}
static size_t pack(const void *from, size_t bytes, unsigned char *out)
{
    const uint64_t *words = from;
    unsigned char *at = out;
    for (size_t i = 0; i < bytes / 8; i += 8) {
        unsigned char *mask = at++;
        *mask = 0;
        if (i + 8 <= bytes / 8 && is_zero(words + i)) continue;
        for (size_t j = i; j < i + 8 && j < bytes / 8; j++) {
            if (!words[j]) continue;
            *mask |= (unsigned char)(1 << (j - i));
            memcpy(at, &words[j], 8);
            at += 8;
        }
    }
    return (size_t)(at - out);
}
static const unsigned char *unpack(void *to, size_t bytes, const unsigned char *from)
{
    uint64_t *words = to;
    for (size_t i = 0; i < bytes / 8; i += 8) {
        unsigned char mask = *from++;
        if (!mask && i + 8 <= bytes / 8) { memset(&words[i], 0, 64); continue; }
        for (size_t j = i; j < i + 8 && j < bytes / 8; j++) {
            words[j] = 0;
            if (!(mask & 1 << (j - i))) continue;
            memcpy(&words[j], from, 8);
            from += 8;
        }
    }
    return from;
}
enum { AFTER_LAYOUT = offsetof(struct agree, state), AFTER_OBJECTS = offsetof(struct world, peers) };
_Static_assert(AFTER_LAYOUT % 8 == 0 && AFTER_OBJECTS % 8 == 0 && sizeof(struct world) % 8 == 0, "whole words");
size_t world_pack(const struct world *w, unsigned char *out)
{
    size_t used = 0;
    for (int r = 0; r < RANKS; r++) used += pack(&w->object[r].state, sizeof w->object[r] - AFTER_LAYOUT, out + used);
    return used + pack(w->peers, sizeof *w - AFTER_OBJECTS, out + used);
}
void world_unpack(struct world *w, const struct scenario *s, const unsigned char *from)
{
    for (int r = 0; r < RANKS; r++) from = unpack(&w->object[r].state, sizeof w->object[r] - AFTER_LAYOUT, from);
    unpack(w->peers, sizeof *w - AFTER_OBJECTS, from);
    world_connect(w, s);
}
