/* Where the tensors of all ranks lie: what this rank says about its own in its declaration, what the group makes of
 * that, and the addresses under which peers' tensors are reached here. Of the operation at the head of the queue;
 * driver only. */
#pragma once
#include "backend/engine/choice.h"
#include "backend/engine/operation.h"

struct view;
enum reading { READING_UNKNOWN, READING_WORKS, READING_REFUSED };
struct held_view { uint64_t block; struct view *view; bool mapped; };  /* not mapped: on its way, or NULL */
enum { HELD_RECEIVING = OUTPUT + 1, HELD_SENDING, HELD_COUNT };        /* messages: of a peer one each at a time */
struct reach {                                          /* of the driver */
    int ranks;
    struct held_view (*held)[HELD_COUNT];               /* [index on this host][INPUT, OUTPUT and so on] */
    uint64_t *shared, *in_place;                        /* of this operation's placement */
    struct source *sources;                             /* of each rank of this host, once they have been looked for */
    _Atomic int reading; /* enum reading; of any thread, and what follows it once known */
    int unreadable, error;                              /* REFUSED: of which rank, and why (-errno) */
    int64_t release_until_ms;                           /* after a failure: how long to wait for peers; 0: not yet */
    bool release_told;                                  /* and who did not let go by then */
};
tutti_status reach_init(struct reach *reach, int ranks);
void reach_finish(struct reach *reach);                 /* unholds what was held for the next operation */

/* Of a declaration. OPEN: peers can read where it lies, and this rank can read its peers. READING: they should,
   whatever it costs. */
enum tensor_flags { TENSOR_SHARED = 1, TENSOR_IN_PLACE = 2, TENSOR_ASKED = 4, TENSOR_OPEN = 8, TENSOR_READING = 16 };
/* Fills in the part of the declaration that the fingerprint does not cover. asked: this rank wants its algorithm and no
   other; may_read: reading private tensors where they lie is among what is chosen from. */
void tensors_describe(tutti_comm *comm, const struct operation *op, bool asked, bool may_read);
/* How all tensors lie if they lie as this rank's: shared, or open to whoever can read them. */
enum placement_kind tensors_guess(const tutti_comm *comm, const struct operation *op);
/* Whether this rank can read the memory of all others of its host; finds it out when first asked. */
bool tensors_can_read(tutti_comm *comm);
/* What all ranks of a host see alike once all have come: whose tensors are shared, and in place (masks as in struct
   plan, valid until the next call; private ones count as in place, so that few plans serve them, but not for a plan by
   which they are read where they lie, is_read), whether a rank has asked for its algorithm, whether all tensors can be
   read where they lie, and are to be. */
struct placement { const uint64_t *shared, *in_place; bool asked, open, reading; };
struct placement tensors_placement(tutti_comm *comm, const struct operation *op, bool is_read);
/* Finds the addresses that the launch's program needs. IN_PROGRESS: something is on its way (blocked says on what). */
tutti_status tensors_find(tutti_comm *comm, const struct operation *op);
/* After a failure: whether no living peer touches this rank's tensors any more, or has for RELEASE_MS not said so. */
enum { RELEASE_MS = 2000 };
bool tensors_are_released(tutti_comm *comm);
/* The address here of a rank's tensor, valid until the next call for that rank and use (INPUT, OUTPUT, HELD_RECEIVING,
   HELD_SENDING). IN_PROGRESS: it is being mapped. */
tutti_status tensor_reach(tutti_comm *comm, int rank, int use, struct location at, size_t bytes, unsigned char **out);
