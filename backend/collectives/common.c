/* Arithmetic of rings and trees, and ranges of chunks that wrap. Each function here depends only on its arguments, or
 * records a few steps for its caller. */
#include "backend/collectives/common.h"

int int_modulo(int a, int n) { return (a % n + n) % n; }
int int_min(int a, int b) { return a < b ? a : b; }
int power_of_two_below(int n)
{
    int power = 1;
    while (power <= n / 2) power *= 2;
    return power;
}
struct span span_part(struct span a, int first, int count)
{
    return (struct span){ a.rank, a.buffer, a.first + first, count };
}

/* ---- sums ---- */
struct span step_accumulate(struct schedule *s, struct span sum, struct span have, struct span received)
{
    if (!spans_are_equal(sum, have)) step_copy(s, sum, have);
    step_reduce(s, sum, received);
    return sum;
}
void step_sum_all_inputs(struct schedule *s, struct span into, int first)
{
    step_copy(s, into, (struct span){ 0, INPUT, first, into.count });
    for (int peer = 1; peer < s->size; peer++) step_reduce(s, into, (struct span){ peer, INPUT, first, into.count });
}

/* ---- copies of this rank's input ---- */
void step_copy_input_to_block(struct schedule *s)
{
    step_copy(s, span_of_chunk(s->rank, OUTPUT, s->rank), span_of_buffer(s, s->rank, INPUT));
}
void step_copy_root_input(struct schedule *s)
{
    if (s->rank == s->root) step_copy(s, span_of_buffer(s, s->rank, OUTPUT), span_of_buffer(s, s->rank, INPUT));
}

/* ---- pieces of a team ---- */
struct team team_of_blocks(const struct schedule *s)
{
    struct team t = team_of_group(s);
    t.pieces = s->size;
    return t;
}
struct piece_run team_piece_run(const struct schedule *s, const struct team *t, enum buffer buffer, int first,
    int count)
{
    int start = int_modulo(first, t->pieces), before_wrap = int_min(count, t->pieces - start);
    struct piece_run run = { .parts = before_wrap < count ? 2 : 1 };
    run.part[0] = (struct span){ s->rank, buffer, t->base + start, before_wrap };
    run.part[1] = (struct span){ s->rank, buffer, t->base, count - before_wrap };
    return run;
}
struct span team_piece(const struct schedule *s, const struct team *t, enum buffer buffer, int index)
{
    return span_of_chunk(s->rank, buffer, t->base + int_modulo(index, t->pieces));
}
struct span team_all_pieces(const struct schedule *s, const struct team *t, enum buffer buffer)
{
    return (struct span){ s->rank, buffer, t->base, t->pieces };
}
bool team_is_alone(struct schedule *s, const struct team *t)
{
    return team_is_alone_with_sum(s, t, team_all_pieces(s, t, OUTPUT));
}
bool team_is_alone_with_sum(struct schedule *s, const struct team *t, struct span sum)
{
    struct span have = team_all_pieces(s, t, t->source);
    if (t->size == 1 && !spans_are_equal(sum, have)) step_copy(s, sum, have);
    return t->size == 1;
}
void piece_run_send(struct schedule *s, struct piece_run from, int peer)
{
    step_send(s, from.part[0], peer);
    if (from.parts == 2) step_add_span(s, from.part[1]);
}
void piece_run_recv(struct schedule *s, struct piece_run into, int peer)
{
    step_recv(s, into.part[0], peer);
    if (into.parts == 2) step_add_span(s, into.part[1]);
}
void piece_run_copy(struct schedule *s, struct span to, struct piece_run from)
{
    for (int i = 0, done = 0; i < from.parts; done += from.part[i++].count)
        step_copy(s, span_part(to, done, from.part[i].count), from.part[i]);
}
void piece_run_accumulate(struct schedule *s, struct piece_run sum, struct piece_run have, struct span received)
{
    for (int i = 0, done = 0; i < sum.parts; done += sum.part[i++].count)
        step_accumulate(s, sum.part[i], have.part[i], span_part(received, done, sum.part[i].count));
}

/* ---- folding ---- */
struct fold fold_for_rank(int size, int me)
{
    int power = power_of_two_below(size), extra = size - power;
    bool paired = me < 2 * extra;
    return (struct fold){ power, extra, paired ? me / 2 : me - extra, paired && me % 2 == 0, paired && me % 2 == 1 };
}
bool fold_join_pair(struct schedule *s, const struct team *t, const struct fold *f, struct span out, struct span *have)
{
    if (f->gives) {
        step_send(s, *have, team_rank(t, t->me + 1));
        step_recv(s, out, team_rank(t, t->me + 1));
    }
    if (f->takes) {
        struct span received = span_new_scratch(s, out.count);
        step_recv(s, received, team_rank(t, t->me - 1));
        *have = step_accumulate(s, out, *have, received);
    }
    return !f->gives;
}
void fold_return_result(struct schedule *s, const struct team *t, const struct fold *f, struct span out)
{
    if (f->takes) step_send(s, out, team_rank(t, t->me - 1));
}
int fold_member_of_id(const struct fold *f, int id) { return id < f->extra ? 2 * id + 1 : id + f->extra; }
int fold_first_member(const struct fold *f, int id) { return id < f->extra ? 2 * id : id + f->extra; }

/* ---- binomial trees of blocks ---- */
struct branch branch_of_rank(struct schedule *s)
{
    int nth = int_modulo(s->rank - s->root, s->size), low = nth ? nth & -nth : s->size;
    struct branch b = { .count = int_min(low, s->size - nth), .parent = nth ? int_modulo(s->rank - low, s->size) : -1 };
    if (nth) b.landing = span_new_scratch(s, b.count);
    return b;
}
struct piece_run branch_block_run(const struct schedule *s, const struct branch *b, enum buffer at_root, int first,
    int count)
{
    struct team all = team_of_blocks(s);
    if (b->parent < 0) return team_piece_run(s, &all, at_root, s->root + first, count);
    return (struct piece_run){ { span_part(b->landing, first, count) }, 1 };
}
