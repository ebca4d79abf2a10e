/* What the tests of schedules share: layouts, building, proving, and a generator of numbers that any seed repeats. */
#pragma once
#include "backend/base/memory.h"
#include "backend/schedule/schedule.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

enum { MOST_HOSTS = 128 };
struct hosts { struct layout layout; int first[MOST_HOSTS + 1]; };

static inline const struct layout *hosts_of(struct hosts *h, const int *sizes, int hosts)
{
    h->layout = (struct layout){ hosts, h->first };
    h->first[0] = 0;
    for (int i = 0; i < hosts; i++) h->first[i + 1] = h->first[i] + sizes[i];
    return &h->layout;
}
static inline const struct layout *together(struct hosts *h, int size) { return hosts_of(h, &size, 1); }
static inline const struct layout *apart(struct hosts *h, int size)
{
    h->layout = (struct layout){ size, h->first };
    for (int i = 0; i <= size; i++) h->first[i] = i;
    return &h->layout;
}
static inline struct plan plan_of(const struct algorithm *a, const struct layout *l, int root)
{
    int size = l->first[l->hosts];
    return (struct plan){ .algorithm = a, .layout = l, .size = size, .root = root, .count = size, .slots = 1 };
}
static inline bool is_rooted(enum family f) { return f == REDUCE || f == BROADCAST || f == GATHER || f == SCATTER; }
static inline bool is_reducing(enum family f) { return f == ALLREDUCE || f == REDUCE || f == REDUCE_SCATTER; }
static inline uint64_t all_ranks(int size) { return size >= 64 ? UINT64_MAX : ((uint64_t)1 << size) - 1; }
static inline uint64_t draw(uint64_t *state)                            /* xorshift (Marsaglia 2003); state is not 0 */
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}
static inline void describe(const struct plan *p, char *out, size_t bytes)
{
    snprintf(out, bytes, "%s (family %d) of %d ranks on %d hosts, root %d, slots %d, in place %llx, shared %llx%s%s",
        p->algorithm->name, (int)p->algorithm->family, p->size, p->layout->hosts, p->root, p->slots,
        (unsigned long long)p->in_place, (unsigned long long)p->shared, p->hoist ? ", hoisted" : "",
        p->stage_inputs ? ", inputs staged" : "");
}
