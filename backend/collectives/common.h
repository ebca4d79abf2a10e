/* What the algorithms share: arithmetic of rings and trees, ranges of chunks that wrap, and the algorithms of teams,
 * from which hierarchical collectives are put together. A comment above an algorithm gives its rounds (a rank sends
 * one message and receives one at a time), the bytes a rank sends, and its source; p is the number of ranks, n the
 * bytes of a rank's whole message. */
#pragma once
#include "backend/collectives/table.h"

int mod(int a, int n);                                      /* 0 … n - 1, also of a negative number */
int least(int a, int b);
int power_below(int n);                              /* the largest power of two that is not above n */
struct span span_part(struct span a, int first, int count);
bool span_same(struct span a, struct span b);

/* sum = have + received; returns sum, which is what the rank has from then on. `have` may be `sum` itself. */
struct span accumulate(struct schedule *s, struct span sum, struct span have, struct span received);
/* into = what all ranks have at `first` of INPUT, read where it lies and added in rank order: the same bits whoever
   does it. */
void accumulate_host(struct schedule *s, struct span into, int first);

/* Pieces first … first + count - 1 of a team in one of my buffers: one span, or two when the numbers wrap. */
struct piece_run { struct span part[2]; int parts; };
struct team team_blocks(const struct schedule *s);          /* the whole group; piece i is the block of rank i */
struct piece_run team_run(const struct schedule *s, const struct team *t, enum buffer buffer, int first, int count);
struct span team_piece(const struct schedule *s, const struct team *t, enum buffer buffer, int index);
struct span team_part(const struct schedule *s, const struct team *t, enum buffer buffer);    /* all pieces */
bool team_is_alone(struct schedule *s, const struct team *t);  /* then the result is what it brings, done here */
bool team_is_alone_with(struct schedule *s, const struct team *t, struct span sum);    /* the same, if it goes there */
void run_send(struct schedule *s, struct piece_run from, int peer);
void run_recv(struct schedule *s, struct piece_run into, int peer);
void run_copy(struct schedule *s, struct span to, struct piece_run from);
void run_accumulate(struct schedule *s, struct piece_run sum, struct piece_run have, struct span received);

/* A group folded to a power of two. Of the first `extra` pairs of neighbours the even one gives its data to the odd
   one, which takes part for both and passes the result back. */
struct fold { int power, extra, id; bool gives, takes; };
struct fold fold_of(int size, int me);
/* The pairs become one. False: this rank gave `have` away and gets the result back into `out`; it is done. Else
   *have is the pair's. */
bool fold_in(struct schedule *s, const struct team *t, const struct fold *f, struct span out, struct span *have);
void fold_out(struct schedule *s, const struct team *t, const struct fold *f, struct span out);
int fold_member(const struct fold *f, int id);                         /* who plays `id` */
int fold_first(const struct fold *f, int id);                          /* the first member that `id` stands for */

/* A rank's place in the binomial tree of gather and scatter: it carries the blocks of `count` ranks, counted from
   its own on. They lie in their places of a tensor at the root, in `landing` elsewhere. */
struct branch { int count, parent; struct span landing; };             /* parent: -1 at the root */
struct branch branch_of(struct schedule *s);
struct piece_run branch_blocks(const struct schedule *s, const struct branch *b, enum buffer at_root, int first,
    int count);

/* Where a rank stands in one of two binary trees whose inner nodes differ. Indices of a team; -1: none. */
struct node { int parent, child[2]; };
struct node double_tree_node(int size, int me, int root, int tree);

typedef void team_function(struct schedule *s, const struct team *t);
team_function team_allreduce_ring, team_allreduce_doubling, team_allreduce_rabenseifner, team_allreduce_circulant;
team_function team_allreduce_double_tree;                              /* of two pieces, as all double trees */
team_function team_allgather_ring;                                     /* piece `me` is in OUTPUT */
team_function team_barrier_dissemination;
/* The team's sum, at the root in `sum` (elsewhere `sum` holds what goes up). `root` is an index of the team. */
typedef void team_reduction(struct schedule *s, const struct team *t, int root, struct span sum);
team_reduction team_reduce_binomial, team_reduce_double_tree;
typedef void team_spreading(struct schedule *s, const struct team *t, int root);   /* of what the root has in OUTPUT */
team_spreading team_broadcast_binomial, team_broadcast_chain, team_broadcast_double_tree;
