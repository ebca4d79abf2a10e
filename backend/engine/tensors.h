/* Where the tensors of all ranks lie: what this rank declares about its own, what all ranks derive from the
 * declarations, and the addresses of peers' tensors in this process. The functions concern the operation at the head of
 * the run queue. Driver only. */
#pragma once
#include "backend/engine/operation.h"
#include "backend/tuning/selection.h"

struct view;
enum reading { READING_UNKNOWN, READING_WORKS, READING_REFUSED };
/* A view of a peer's block. `mapped` is false while the mapping is requested, or if view is NULL. */
struct held_view { uint64_t block; struct view *view; bool mapped; };
/* Uses of a view beside INPUT and OUTPUT. Messages hold at most one view of a peer for each direction. */
enum { HELD_RECEIVING = OUTPUT + 1, HELD_SENDING, HELD_COUNT };
/* Access to the tensors of the ranks of this host. The driver owns these fields. */
struct tensor_access {
    int ranks;
    struct held_view (*held)[HELD_COUNT];               /* [index on this host][use] */
    /* The masks of the running operation's placement. */
    uint64_t *shared, *in_place;
    /* The processes of this host's ranks. NULL until tensors_can_read_peers first needs them. */
    struct read_source *sources;                             /* [index on this host] */
    /* An enum reading. Any thread may read it, and the fields after it once it is known. */
    _Atomic int reading;
    /* If REFUSED: the rank that cannot be read, and -errno. */
    int unreadable, error;
    /* How long to wait for peers after a failure; 0: not set yet. */
    int64_t release_until_ms;
    /* The ranks that did not release the tensors in time have been logged. */
    bool release_told;
};
tutti_status tensor_access_init(struct tensor_access *access, int ranks);
/* Also releases the views that were held for the next operation. */
void tensor_access_finish(struct tensor_access *access);

/* Flags of a declaration. OPEN: peers can read the tensors in place, and this rank can read its peers. READING: they
   must be read, at any cost. */
enum tensor_flags { TENSOR_SHARED = 1, TENSOR_IN_PLACE = 2, TENSOR_ASKED = 4, TENSOR_OPEN = 8, TENSOR_READING = 16 };
/* Fills in the part of the declaration that the fingerprint does not cover. `asked`: this rank insists on its
   algorithm. `may_read`: reading private tensors in place is a candidate. */
void tensors_describe(tutti_comm *comm, const struct operation *op, bool asked, bool may_read);
/* Returns the placement if the tensors of all ranks lie as this rank's do. It assumes that peers can read private
   ones. */
enum placement_kind tensors_guess_placement(const tutti_comm *comm, const struct operation *op);
/* True if this rank can read the memory of all others of its host. The first call that has memory tests
   this. */
bool tensors_can_read_peers(tutti_comm *comm);
/* The ranks of a host derive this from the declarations once all have arrived. The masks (as in struct plan, valid
   until the next call) mark ranks with shared tensors and ranks with tensors in place. asked: a rank insists on its
   algorithm. open: all tensors can be read in place. must_read: they must be. */
struct placement { const uint64_t *shared, *in_place; bool asked, open, must_read; };
/* Private tensors count as in place, so that few plans serve them. With `is_read`, for a plan that reads them, only
   those count that really are in place. */
struct placement tensors_get_placement(tutti_comm *comm, const struct operation *op, bool is_read);
/* Finds the addresses that the launch's program needs. IN_PROGRESS: a mapping is requested, and `blocked` names the
   word that changes when it is done. */
tutti_status tensors_find_operands(tutti_comm *comm, const struct operation *op);
enum { RELEASE_MS = 2000 };
/* After a failure: true if no living peer touches this rank's tensors any more, or RELEASE_MS have passed. */
bool tensors_are_released(tutti_comm *comm);
/* Returns the address here of a rank's tensor, valid until the next call for that rank and use (INPUT, OUTPUT,
   HELD_RECEIVING, HELD_SENDING). IN_PROGRESS: it is being mapped. */
tutti_status tensor_map_address(tutti_comm *comm, int rank, int use, struct location at, size_t bytes,
    unsigned char **out);
