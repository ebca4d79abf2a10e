/* Arithmetic of rings and trees, and ranges of chunks that wrap. Each function here depends only on its arguments, or
 * records a few steps for its caller. */
#include "backend/collectives/common.h"

int int_modulo(int a, int n) { return (a % n + n) % n; }
int int_min(int a, int b) { return a < b ? a : b; }
int power_of_two_at_most(int n)
{
    int power = 1;
    while (power <= n / 2) power *= 2;
    return power;
}
struct span span_part(struct span span, int first, int count)
{
    return (struct span){ span.rank, span.buffer, span.first + first, count };
}

/* ---- sums ---- */
struct span step_accumulate(struct schedule *schedule, struct span sum, struct span have, struct span received)
{
    if (!spans_are_equal(sum, have)) step_copy(schedule, sum, have);
    step_reduce(schedule, sum, received);
    return sum;
}
void step_sum_all_inputs(struct schedule *schedule, struct span into, int first)
{
    step_copy(schedule, into, (struct span){ 0, INPUT, first, into.count });
    for (int peer = 1; peer < schedule->size; peer++)
        step_reduce(schedule, into, (struct span){ peer, INPUT, first, into.count });
}

/* ---- copies of this rank's input ---- */
void step_copy_input_to_block(struct schedule *schedule)
{
    step_copy(schedule, span_of_chunk(schedule->rank, OUTPUT, schedule->rank),
        span_of_buffer(schedule, schedule->rank, INPUT));
}
void step_copy_root_input(struct schedule *schedule)
{
    if (schedule->rank == schedule->root)
        step_copy(schedule, span_of_buffer(schedule, schedule->rank, OUTPUT),
            span_of_buffer(schedule, schedule->rank, INPUT));
}

/* ---- pieces of a team ---- */
struct team team_of_blocks(const struct schedule *schedule)
{
    struct team team = team_of_group(schedule);
    team.pieces = schedule->size;
    return team;
}
struct piece_run team_piece_run(const struct schedule *schedule, const struct team *team, enum buffer buffer, int first,
    int count)
{
    int start = int_modulo(first, team->pieces), before_wrap = int_min(count, team->pieces - start);
    struct piece_run run = { .parts = before_wrap < count ? 2 : 1 };
    run.part[0] = (struct span){ schedule->rank, buffer, team->base + start, before_wrap };
    run.part[1] = (struct span){ schedule->rank, buffer, team->base, count - before_wrap };
    return run;
}
struct span team_piece(const struct schedule *schedule, const struct team *team, enum buffer buffer, int index)
{
    return span_of_chunk(schedule->rank, buffer, team->base + int_modulo(index, team->pieces));
}
struct span team_all_pieces(const struct schedule *schedule, const struct team *team, enum buffer buffer)
{
    return (struct span){ schedule->rank, buffer, team->base, team->pieces };
}
bool team_copy_if_alone(struct schedule *schedule, const struct team *team)
{
    return team_copy_sum_if_alone(schedule, team, team_all_pieces(schedule, team, OUTPUT));
}
bool team_copy_sum_if_alone(struct schedule *schedule, const struct team *team, struct span sum)
{
    struct span have = team_all_pieces(schedule, team, team->source);
    if (team->size == 1 && !spans_are_equal(sum, have)) step_copy(schedule, sum, have);
    return team->size == 1;
}
void piece_run_send(struct schedule *schedule, struct piece_run from, int peer)
{
    step_send(schedule, from.part[0], peer);
    if (from.parts == 2) step_add_span(schedule, from.part[1]);
}
void piece_run_recv(struct schedule *schedule, struct piece_run into, int peer)
{
    step_recv(schedule, into.part[0], peer);
    if (into.parts == 2) step_add_span(schedule, into.part[1]);
}
void piece_run_copy(struct schedule *schedule, struct span to, struct piece_run from)
{
    for (int i = 0, copied = 0; i < from.parts; copied += from.part[i++].count)
        step_copy(schedule, span_part(to, copied, from.part[i].count), from.part[i]);
}
void piece_run_accumulate(struct schedule *schedule, struct piece_run sum, struct piece_run have, struct span received)
{
    for (int i = 0, added = 0; i < sum.parts; added += sum.part[i++].count)
        step_accumulate(schedule, sum.part[i], have.part[i], span_part(received, added, sum.part[i].count));
}

/* ---- folding ---- */
struct fold fold_for_rank(int size, int me)
{
    int power = power_of_two_at_most(size), extra = size - power;
    bool paired = me < 2 * extra;
    return (struct fold){ power, extra, paired ? me / 2 : me - extra, paired && me % 2 == 0, paired && me % 2 == 1 };
}
bool fold_join_pair(struct schedule *schedule, const struct team *team, const struct fold *fold, struct span out,
    struct span *have)
{
    if (fold->gives) {
        step_send(schedule, *have, team_rank(team, team->me + 1));
        step_recv(schedule, out, team_rank(team, team->me + 1));
    }
    if (fold->takes) {
        struct span received = span_new_scratch(schedule, out.count);
        step_recv(schedule, received, team_rank(team, team->me - 1));
        *have = step_accumulate(schedule, out, *have, received);
    }
    return !fold->gives;
}
void fold_return_result(struct schedule *schedule, const struct team *team, const struct fold *fold, struct span out)
{
    if (fold->takes) step_send(schedule, out, team_rank(team, team->me - 1));
}
int fold_member_of_id(const struct fold *fold, int id) { return id < fold->extra ? 2 * id + 1 : id + fold->extra; }
int fold_first_member(const struct fold *fold, int id) { return id < fold->extra ? 2 * id : id + fold->extra; }

/* ---- binomial trees of blocks ---- */
/* A rank at distance d after the root carries as many blocks as the lowest set bit of d, up to the last rank. */
struct branch branch_of_rank(struct schedule *schedule)
{
    int distance = int_modulo(schedule->rank - schedule->root, schedule->size),
        low = distance ? distance & -distance : schedule->size;
    struct branch branch = { .count = int_min(low, schedule->size - distance),
        .parent = distance ? int_modulo(schedule->rank - low, schedule->size) : -1 };
    if (distance) branch.blocks = span_new_scratch(schedule, branch.count);
    return branch;
}
struct piece_run branch_block_run(const struct schedule *schedule, const struct branch *branch, enum buffer at_root,
    int first, int count)
{
    struct team all = team_of_blocks(schedule);
    if (branch->parent < 0) return team_piece_run(schedule, &all, at_root, schedule->root + first, count);
    return (struct piece_run){ { span_part(branch->blocks, first, count) }, 1 };
}
