/* Textbook algorithms whose plans the tests examine. */
#pragma once
#include "tests/unit/schedule/plans.h"

static inline void sum_of_all(struct schedule *s, struct span into, int first)
{
    for (int r = 0; r < s->size; r++) {
        struct span from = { r, INPUT, first, into.count };
        if (r == 0) step_copy(s, into, from);
        else step_reduce(s, into, from);
    }
}
static inline void record_one_shot(struct schedule *s) { sum_of_all(s, span_of_buffer(s, s->rank, OUTPUT), 0); }
static inline void record_two_shot(struct schedule *s)
{
    schedule_cut(s, s->size);
    sum_of_all(s, span_of_chunk(s->rank, OUTPUT, s->rank), s->rank);
    for (int hop = 1; hop < s->size; hop++)
        step_copy(s, span_of_chunk((s->rank + hop) % s->size, OUTPUT, s->rank),
            span_of_chunk(s->rank, OUTPUT, s->rank));
}
static inline void record_ring(struct schedule *s)
{
    int p = s->size, next = (s->rank + 1) % p, before = (s->rank + p - 1) % p;
    schedule_cut(s, p);
    struct span scratch = span_new_scratch(s, 2), have = span_of_chunk(s->rank, INPUT, before);
    for (int k = 0; k < 2 * p - 2; k++) {
        int got = (s->rank + 2 * p - k - 2) % p;
        struct span out = span_of_chunk(s->rank, OUTPUT, got),
                    received = span_of_chunk(s->rank, SCRATCH, scratch.first + k % 2);
        step_send(s, have, next);
        step_recv(s, k < p - 1 ? received : out, before);
        if (k < p - 1) {
            step_copy(s, out, span_of_chunk(s->rank, INPUT, got));
            step_reduce(s, out, received);
        }
        have = out;
    }
}
static inline void record_binomial(struct schedule *s)
{
    int v = (s->rank - s->root + s->size) % s->size, bit = 1;
    struct span out = span_of_buffer(s, s->rank, OUTPUT);
    if (v == 0) step_copy(s, out, span_of_buffer(s, s->rank, INPUT));
    while (bit < s->size && !(v & bit)) bit *= 2;
    if (v) step_recv(s, out, (s->rank - bit + s->size) % s->size);
    for (bit /= 2; bit; bit /= 2)
        if (v + bit < s->size) step_send(s, out, (s->rank + bit) % s->size);
}
static const struct algorithm one_shot = { .name = "one_shot", .collective = ALLREDUCE, .record = record_one_shot },
                              two_shot = { .name = "two_shot", .collective = ALLREDUCE, .record = record_two_shot },
                              ring = { .name = "ring", .collective = ALLREDUCE, .record = record_ring },
                              binomial = { .name = "binomial", .collective = BROADCAST, .record = record_binomial };
