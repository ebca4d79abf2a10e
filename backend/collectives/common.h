/* Helpers of the algorithms: arithmetic of rings and trees, ranges of chunks that wrap, and the algorithms of teams,
 * which hierarchical collectives combine. A comment above an algorithm gives its rounds (in one round a rank sends one
 * message and receives one), the bytes that a rank sends, and its source. p is the number of ranks, n the bytes of a
 * rank's whole message. */
#pragma once
#include "backend/collectives/table.h"

/* Returns a modulo n from 0 to n - 1, also for a negative `a`. */
int int_modulo(int a, int n);
int int_min(int a, int b);
/* Returns the largest power of two that is at most n. */
int power_of_two_at_most(int n);
/* Returns `count` chunks of a span, from its chunk `first` on (counted in the span). */
struct span span_part(struct span span, int first, int count);

/* Records sum = have + received; returns `sum`. `have` may be `sum` itself. */
struct span step_accumulate(struct schedule *schedule, struct span sum, struct span have, struct span received);
/* Records into = the sum over all ranks of their INPUT from chunk `first` on, read where it lies. It adds in rank
   order, so every rank gets the same bits. */
void step_sum_all_inputs(struct schedule *schedule, struct span into, int first);
/* Records a copy of this rank's INPUT (one block) into its own block of its OUTPUT. */
void step_copy_input_to_block(struct schedule *schedule);
/* Records a copy of INPUT to OUTPUT if this rank is the root. */
void step_copy_root_input(struct schedule *schedule);

/* Pieces first … first + count - 1 of a team in one of a rank's buffers: one span, or two if the numbers wrap. */
struct piece_run { struct span part[2]; int parts; };
/* Returns the whole group as a team; piece i is the block of rank i. */
struct team team_of_blocks(const struct schedule *schedule);
/* Returns `count` pieces of the team from piece `first` on, which wraps, in a buffer of this rank. team_piece returns
   one. */
struct piece_run team_piece_run(const struct schedule *schedule, const struct team *team, enum buffer buffer, int first,
    int count);
struct span team_piece(const struct schedule *schedule, const struct team *team, enum buffer buffer, int index);
/* Returns all pieces of the team in a buffer of this rank. */
struct span team_all_pieces(const struct schedule *schedule, const struct team *team, enum buffer buffer);
/* Records, if the team has one rank, the whole algorithm: a copy of its contribution to OUTPUT or to `sum`, unless it
   is there. Returns true if the team has one rank. */
bool team_copy_if_alone(struct schedule *schedule, const struct team *team);
bool team_copy_sum_if_alone(struct schedule *schedule, const struct team *team, struct span sum);
/* Records steps over the pieces of a run: one message with all of them, a copy of them to a span, or sum = have +
   received piece by piece. */
void piece_run_send(struct schedule *schedule, struct piece_run from, int peer);
void piece_run_recv(struct schedule *schedule, struct piece_run into, int peer);
void piece_run_copy(struct schedule *schedule, struct span to, struct piece_run from);
void piece_run_accumulate(struct schedule *schedule, struct piece_run sum, struct piece_run have, struct span received);

/* A team folded to `power` participants, a power of two. In each of the first `extra` pairs of neighbours the even
   member gives its data to the odd one, which participates for both and sends the result back. id: the number of this
   participant (of the pair, if this member gives). */
struct fold { int power, extra, id; bool gives, takes; };
/* Returns the fold of a team of `size` members, for its member `me`. */
struct fold fold_for_rank(int size, int me);
/* Records the exchange that joins each pair. False: this rank gives *have away and receives the result into `out`, so
   it is done. True: it participates with *have, which becomes the sum of the pair, in `out`, if there is one. */
bool fold_join_pair(struct schedule *schedule, const struct team *team, const struct fold *fold, struct span out,
    struct span *have);
/* Records that a rank which participates for a pair sends the result to the other rank of the pair. */
void fold_return_result(struct schedule *schedule, const struct team *team, const struct fold *fold, struct span out);
/* Returns the member that is participant `id`. */
int fold_member_of_id(const struct fold *fold, int id);
/* Returns the first member whose data participant `id` has. */
int fold_first_member(const struct fold *fold, int id);

/* A rank's place in the binomial tree of gather and scatter. It carries the blocks of `count` ranks, its own first.
   They lie in their places of a tensor on the root, and in `blocks`, a span of SCRATCH, elsewhere. `parent` is -1 on
   the root. */
struct branch { int count, parent; struct span blocks; };
/* Returns this rank's place in the tree around the root. */
struct branch branch_of_rank(struct schedule *schedule);
/* Returns `count` of the blocks that the rank carries, from block `first` on, counted from its own. at_root: the tensor
   that has them on the root. */
struct piece_run branch_block_run(const struct schedule *schedule, const struct branch *branch, enum buffer at_root,
    int first, int count);

/* A rank's position in one of two binary trees whose inner nodes differ. The members are indices of a team, or -1. */
struct node { int parent, child[2]; };
/* Returns the position of member `me` in tree 0 or 1 of a team of `size` members. */
struct node double_tree_node(int size, int me, int root, int tree);

/* An algorithm of a team: records the steps by which each member gets the result in its OUTPUT. */
typedef void team_function(struct schedule *schedule, const struct team *team);
team_function team_allreduce_ring, team_allreduce_doubling, team_allreduce_rabenseifner, team_allreduce_circulant;
/* Double trees need a team of two pieces. */
team_function team_allreduce_double_tree;
/* Gathers all pieces in OUTPUT. Piece `me` must be there already. */
team_function team_allgather_ring;
team_function team_barrier_dissemination;
/* Records a reduction to member `root` of the team. `sum` gets the team's sum on the root, and partial sums
   elsewhere. */
typedef void team_reduction(struct schedule *schedule, const struct team *team, int root, struct span sum);
team_reduction team_reduce_binomial, team_reduce_double_tree;
/* Records a broadcast of the OUTPUT of member `root` of the team. */
typedef void team_spreading(struct schedule *schedule, const struct team *team, int root);
team_spreading team_broadcast_binomial, team_broadcast_chain, team_broadcast_double_tree;
