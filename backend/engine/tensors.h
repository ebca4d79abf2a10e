/* Where the tensors of all ranks lie: what this rank says about its own in its declaration, what the group makes of
 * that, and the addresses under which peers' tensors are reached here. Of the operation at the head of the queue;
 * driver only. */
#pragma once
#include "backend/engine/operation.h"

struct view;
struct held_view { uint64_t block; struct view *view; bool mapped; };  /* not mapped: on its way, or NULL */
enum { HELD_RECEIVING = OUTPUT + 1, HELD_SENDING, HELD_COUNT };        /* messages: of a peer one each at a time */
struct reach {                                          /* of the driver */
    int ranks;
    struct held_view (*held)[HELD_COUNT];               /* [index on this host][INPUT, OUTPUT and so on] */
    uint64_t *shared, *in_place;                        /* of this operation's placement */
    int64_t release_until_ms;                           /* after a failure: how long to wait for peers; 0: not yet */
    bool release_told;                                  /* and who did not let go by then */
};
tutti_status reach_init(struct reach *reach, int ranks);
void reach_finish(struct reach *reach);                 /* unholds what was held for the next operation */

enum tensor_flags { TENSOR_SHARED = 1, TENSOR_IN_PLACE = 2, TENSOR_ASKED = 4 };       /* of a declaration */
/* Fills in the part of the declaration that the fingerprint does not cover. asked: this rank wants its algorithm and no
   other. */
void tensors_describe(tutti_comm *comm, const struct operation *op, bool asked);
/* What all ranks of a host see alike once all have come: whose tensors are shared, and in place (masks as in struct
   plan, valid until the next call; all private ones count as in place, so that few plans serve them), and whether a
   rank has asked for its algorithm. */
struct placement { const uint64_t *shared, *in_place; bool asked; };
struct placement tensors_placement(tutti_comm *comm, const struct operation *op);
/* Finds the addresses that the launch's program needs. IN_PROGRESS: something is on its way (blocked says on what). */
tutti_status tensors_find(tutti_comm *comm, const struct operation *op);
/* After a failure: whether no living peer touches this rank's tensors any more, or has for RELEASE_MS not said so. */
enum { RELEASE_MS = 2000 };
bool tensors_are_released(tutti_comm *comm);
/* The address here of a rank's tensor, valid until the next call for that rank and use (INPUT, OUTPUT, HELD_RECEIVING,
   HELD_SENDING). IN_PROGRESS: it is being mapped. */
tutti_status tensor_reach(tutti_comm *comm, int rank, int use, struct location at, size_t bytes, unsigned char **out);
