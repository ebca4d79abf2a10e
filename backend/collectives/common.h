/* Helpers of the algorithms: arithmetic of rings and trees, ranges of chunks that wrap, and the algorithms of teams,
 * which hierarchical collectives combine. A comment above an algorithm gives its rounds (in one round a rank sends one
 * message and receives one), the bytes that a rank sends, and its source. p is the number of ranks, n the bytes of a
 * rank's whole message. */
#pragma once
#include "backend/collectives/table.h"

/* Returns 0 … n - 1, also for a negative number. */
int int_modulo(int a, int n);
int int_min(int a, int b);
/* Returns the largest power of two that is at most n. */
int power_of_two_below(int n);
struct span span_part(struct span span, int first, int count);

/* Records sum = have + received; returns `sum`, which holds the rank's sum from then on. `have` may be `sum` itself. */
struct span step_accumulate(struct schedule *schedule, struct span sum, struct span have, struct span received);
/* Records into = the sum of all ranks' INPUT from chunk `first` on, read where it lies. It adds in rank order, so every
   rank gets the same bits. */
void step_sum_all_inputs(struct schedule *schedule, struct span into, int first);
/* Copies this rank's INPUT into its block of OUTPUT. */
void step_copy_input_to_block(struct schedule *schedule);
/* Copies INPUT to OUTPUT if this rank is the root. */
void step_copy_root_input(struct schedule *schedule);

/* Pieces first … first + count - 1 of a team in one of a rank's buffers: one span, or two if the numbers wrap. */
struct piece_run { struct span part[2]; int parts; };
/* Returns the whole group as a team; piece i is the block of rank i. */
struct team team_of_blocks(const struct schedule *schedule);
struct piece_run team_piece_run(const struct schedule *schedule, const struct team *team, enum buffer buffer, int first,
    int count);
struct span team_piece(const struct schedule *schedule, const struct team *team, enum buffer buffer, int index);
/* Returns all pieces in one of the rank's buffers. */
struct span team_all_pieces(const struct schedule *schedule, const struct team *team, enum buffer buffer);
/* True if the team has one rank. Its result is its contribution, which is then copied to OUTPUT or to `sum`. */
bool team_is_alone(struct schedule *schedule, const struct team *team);
bool team_is_alone_with_sum(struct schedule *schedule, const struct team *team, struct span sum);
void piece_run_send(struct schedule *schedule, struct piece_run from, int peer);
void piece_run_recv(struct schedule *schedule, struct piece_run into, int peer);
void piece_run_copy(struct schedule *schedule, struct span to, struct piece_run from);
void piece_run_accumulate(struct schedule *schedule, struct piece_run sum, struct piece_run have, struct span received);

/* A group folded to a power of two. In each of the first `extra` pairs of neighbours the even rank gives its data to
   the odd one, which takes part for both and sends the result back. */
struct fold { int power, extra, id; bool gives, takes; };
struct fold fold_for_rank(int size, int me);
/* Records the exchange that joins each pair. False: this rank gave `have` away and gets the result back into `out`, so
   it is done. True: it takes part with *have, the sum of its pair if it has one. */
bool fold_join_pair(struct schedule *schedule, const struct team *team, const struct fold *fold, struct span out,
    struct span *have);
void fold_return_result(struct schedule *schedule, const struct team *team, const struct fold *fold, struct span out);
/* Returns the member that takes part as `id`. */
int fold_member_of_id(const struct fold *fold, int id);
/* Returns the first member that `id` stands for. */
int fold_first_member(const struct fold *fold, int id);

/* A rank's place in the binomial tree of gather and scatter. It carries the blocks of `count` ranks, its own first.
   They lie in their places of a tensor on the root, and in `landing` elsewhere. `parent` is -1 on the root. */
struct branch { int count, parent; struct span landing; };
struct branch branch_of_rank(struct schedule *schedule);
struct piece_run branch_block_run(const struct schedule *schedule, const struct branch *b, enum buffer at_root,
    int first, int count);

/* A rank's position in one of two binary trees whose inner nodes differ. The members are indices of a team, or -1. */
struct node { int parent, child[2]; };
struct node double_tree_node(int size, int me, int root, int tree);

typedef void team_function(struct schedule *schedule, const struct team *team);
team_function team_allreduce_ring, team_allreduce_doubling, team_allreduce_rabenseifner, team_allreduce_circulant;
/* Double trees need a team of two pieces. */
team_function team_allreduce_double_tree;
/* Piece `me` must be in OUTPUT already. */
team_function team_allgather_ring;
team_function team_barrier_dissemination;
/* Reduces to the root, an index of the team. `sum` holds the team's sum on the root, and partial sums elsewhere. */
typedef void team_reduction(struct schedule *schedule, const struct team *team, int root, struct span sum);
team_reduction team_reduce_binomial, team_reduce_double_tree;
/* Broadcasts the root's OUTPUT. */
typedef void team_spreading(struct schedule *schedule, const struct team *team, int root);
team_spreading team_broadcast_binomial, team_broadcast_chain, team_broadcast_double_tree;
