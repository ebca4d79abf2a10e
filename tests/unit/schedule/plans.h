/* Functions that the tests of schedules share: layouts, plans, masks, and random numbers that a seed repeats. */
#pragma once
#include "backend/base/memory.h"
#include "backend/schedule/schedule.h"
#include "tests/support/unit.h"

enum { MOST_PLACED = 128 };
/* Holds the layout that a test uses. The functions below destroy it when they create the next one. A struct hosts must
   start zeroed. */
struct hosts { struct layout *layout; };

static inline const struct layout *placed(struct hosts *h, const int *host_of_rank, int ranks)
{
    layout_destroy(h->layout);
    h->layout = NULL;
    assert_int_equal(layout_create(host_of_rank, ranks, &h->layout), TUTTI_OK);
    return h->layout;
}
/* Creates a layout of hosts with these numbers of ranks; the ranks of a host are consecutive. */
static inline const struct layout *hosts_of(struct hosts *h, const int *sizes, int hosts)
{
    int host[MOST_PLACED], ranks = 0;
    for (int i = 0; i < hosts; i++)
        for (int n = 0; n < sizes[i]; n++) host[ranks++] = i;
    return placed(h, host, ranks);
}
/* All ranks are on one host. */
static inline const struct layout *together(struct hosts *h, int size) { return placed(h, NULL, size); }
/* Each rank is on a host of its own. */
static inline const struct layout *apart(struct hosts *h, int size)
{
    int host[MOST_PLACED];
    for (int r = 0; r < size; r++) host[r] = r;
    return placed(h, host, size);
}
static inline struct plan plan_of(const struct algorithm *a, const struct layout *l, int root)
{
    return (struct plan){ .algorithm = a, .layout = l, .root = root, .slots = 1 };
}
/* Returns a mask of at most 64 members, which stays valid until the function has made 255 others. */
static inline const uint64_t *mask_of(uint64_t bits)
{
    enum { KEPT = 256 };
    static uint64_t words[KEPT];
    static int next;
    next = (next + 1) % KEPT;
    words[next] = bits;
    return &words[next];
}
static inline bool is_rooted(enum collective f) { return f == REDUCE || f == BROADCAST || f == GATHER || f == SCATTER; }
static inline bool is_reducing(enum collective f) { return f == ALLREDUCE || f == REDUCE || f == REDUCE_SCATTER; }
/* Returns a random number: xorshift (Marsaglia 2003). The state must not be 0. */
static inline uint64_t xorshift_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}
/* Writes a line about the plan, for error texts. */
static inline void describe(const struct plan *p, char *out, size_t bytes)
{
    snprintf(out, bytes,
        "%s (collective %d) of %d ranks on %d hosts, root %d, slots %d, in place %llx, shared %llx%s%s",
        p->algorithm->name, (int)p->algorithm->collective, p->layout->ranks, p->layout->hosts, p->root, p->slots,
        (unsigned long long)mask_word(p->in_place, 0, p->layout->ranks),
        (unsigned long long)mask_word(p->shared, 0, p->layout->ranks), p->hoists_receives ? ", hoisted" : "",
        p->stage_inputs ? ", inputs staged" : "");
}
