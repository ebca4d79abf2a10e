/* Arithmetic of rings and trees, and ranges of chunks that wrap. Each function here depends only on its arguments, or
 * records a few steps for its caller. */
#include "backend/collectives/common.h"

int mod(int a, int n) { return (a % n + n) % n; }
int least(int a, int b) { return a < b ? a : b; }
int power_below(int n)
{
    int power = 1;
    while (power <= n / 2) power *= 2;
    return power;
}
struct span span_part(struct span a, int first, int count)
{
    return (struct span){ a.rank, a.buffer, a.first + first, count };
}
bool span_same(struct span a, struct span b)
{
    return a.rank == b.rank && a.buffer == b.buffer && a.first == b.first && a.count == b.count;
}

/* ---- sums ---- */
struct span accumulate(struct schedule *s, struct span sum, struct span have, struct span received)
{
    if (!span_same(sum, have)) step_copy(s, sum, have);
    step_reduce(s, sum, received);
    return sum;
}
void accumulate_host(struct schedule *s, struct span into, int first)
{
    step_copy(s, into, (struct span){ 0, INPUT, first, into.count });
    for (int peer = 1; peer < s->size; peer++) step_reduce(s, into, (struct span){ peer, INPUT, first, into.count });
}

/* ---- pieces of a team ---- */
struct team team_blocks(const struct schedule *s)
{
    struct team t = team_all(s);
    t.pieces = s->size;
    return t;
}
struct piece_run team_run(const struct schedule *s, const struct team *t, enum buffer buffer, int first, int count)
{
    int start = mod(first, t->pieces), before_wrap = least(count, t->pieces - start);
    struct piece_run run = { .parts = before_wrap < count ? 2 : 1 };
    run.part[0] = (struct span){ s->rank, buffer, t->base + start, before_wrap };
    run.part[1] = (struct span){ s->rank, buffer, t->base, count - before_wrap };
    return run;
}
struct span team_piece(const struct schedule *s, const struct team *t, enum buffer buffer, int index)
{
    return chunk(s->rank, buffer, t->base + mod(index, t->pieces));
}
struct span team_part(const struct schedule *s, const struct team *t, enum buffer buffer)
{
    return (struct span){ s->rank, buffer, t->base, t->pieces };
}
bool team_is_alone(struct schedule *s, const struct team *t)
{
    return team_is_alone_with(s, t, team_part(s, t, OUTPUT));
}
bool team_is_alone_with(struct schedule *s, const struct team *t, struct span sum)
{
    struct span have = team_part(s, t, t->source);
    if (t->size == 1 && !span_same(sum, have)) step_copy(s, sum, have);
    return t->size == 1;
}
void run_send(struct schedule *s, struct piece_run from, int peer)
{
    step_send(s, from.part[0], peer);
    if (from.parts == 2) step_also(s, from.part[1]);
}
void run_recv(struct schedule *s, struct piece_run into, int peer)
{
    step_recv(s, into.part[0], peer);
    if (into.parts == 2) step_also(s, into.part[1]);
}
void run_copy(struct schedule *s, struct span to, struct piece_run from)
{
    for (int i = 0, done = 0; i < from.parts; done += from.part[i++].count)
        step_copy(s, span_part(to, done, from.part[i].count), from.part[i]);
}
void run_accumulate(struct schedule *s, struct piece_run sum, struct piece_run have, struct span received)
{
    for (int i = 0, done = 0; i < sum.parts; done += sum.part[i++].count)
        accumulate(s, sum.part[i], have.part[i], span_part(received, done, sum.part[i].count));
}

/* ---- folding ---- */
struct fold fold_of(int size, int me)
{
    int power = power_below(size), extra = size - power;
    bool paired = me < 2 * extra;
    return (struct fold){ power, extra, paired ? me / 2 : me - extra, paired && me % 2 == 0, paired && me % 2 == 1 };
}
bool fold_in(struct schedule *s, const struct team *t, const struct fold *f, struct span out, struct span *have)
{
    if (f->gives) {
        step_send(s, *have, team_rank(t, t->me + 1));
        step_recv(s, out, team_rank(t, t->me + 1));
    }
    if (f->takes) {
        struct span received = fresh(s, out.count);
        step_recv(s, received, team_rank(t, t->me - 1));
        *have = accumulate(s, out, *have, received);
    }
    return !f->gives;
}
void fold_out(struct schedule *s, const struct team *t, const struct fold *f, struct span out)
{
    if (f->takes) step_send(s, out, team_rank(t, t->me - 1));
}
int fold_member(const struct fold *f, int id) { return id < f->extra ? 2 * id + 1 : id + f->extra; }
int fold_first(const struct fold *f, int id) { return id < f->extra ? 2 * id : id + f->extra; }

/* ---- binomial trees of blocks ---- */
struct branch branch_of(struct schedule *s)
{
    int nth = mod(s->rank - s->root, s->size), low = nth ? nth & -nth : s->size;
    struct branch b = { .count = least(low, s->size - nth), .parent = nth ? mod(s->rank - low, s->size) : -1 };
    if (nth) b.landing = fresh(s, b.count);
    return b;
}
struct piece_run branch_blocks(const struct schedule *s, const struct branch *b, enum buffer at_root, int first,
    int count)
{
    struct team all = team_blocks(s);
    if (b->parent < 0) return team_run(s, &all, at_root, s->root + first, count);
    return (struct piece_run){ { span_part(b->landing, first, count) }, 1 };
}
