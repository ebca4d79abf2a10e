/* Where the tensors of all ranks lie: the declaration of this rank's tensors, the placement that all ranks derive from
 * the declarations, and the addresses of peers' tensors in this process. The functions concern the operation at the
 * head of the run queue. Driver only. */
#pragma once
#include "backend/engine/operation.h"
#include "backend/tuning/selection.h"

struct view;
/* Whether this rank can read the memory of the other ranks of its host. */
enum reading { READING_UNKNOWN, READING_WORKS, READING_REFUSED };
/* A view of a peer's block. `mapped` is false while the mapping is requested, or if view is NULL. */
struct held_view { uint64_t block; struct view *view; bool mapped; };
/* Uses of a view beside INPUT and OUTPUT. Messages hold at most one view of a peer for each direction. */
enum { HELD_RECEIVING = OUTPUT + 1, HELD_SENDING, HELD_COUNT };
/* Access to the tensors of the ranks of this host. The driver owns these fields. */
struct tensor_access {
    int ranks;
    /* The view of each peer's block that was last used as INPUT, as OUTPUT, for receiving and for sending. */
    struct held_view (*held)[HELD_COUNT];               /* [index on this host][use] */
    /* The masks of the running operation's placement. */
    uint64_t *shared, *in_place;
    /* The processes of this host's ranks. NULL until tensors_can_read_peers first needs them. */
    struct read_source *sources;                             /* [index on this host] */
    /* An enum reading. Any thread may read it, and the fields after it once it is known. */
    _Atomic int reading;
    /* With READING_REFUSED: the rank that cannot be read, and why, as a negative errno. */
    int unreadable, error;
    /* After a failure: until when (clock_ms) this rank waits for peers to release its tensors; 0: not set yet. */
    int64_t release_until_ms;
    /* The ranks that did not release the tensors in time have been logged. */
    bool release_logged;
};
/* Allocates the tables for `ranks` ranks on this host. The caller must call tensor_access_finish in every case. */
tutti_status tensor_access_init(struct tensor_access *access, int ranks);
/* Releases all held views and frees the tables. */
void tensor_access_finish(struct tensor_access *access);

/* Flags of a declaration. TENSOR_OPEN: peers can read the tensors in place, and this rank can read its peers.
   TENSOR_READING: the tensors must be read in place, whatever that costs. */
enum tensor_flags { TENSOR_SHARED = 1, TENSOR_IN_PLACE = 2, TENSOR_REQUIRED = 4, TENSOR_OPEN = 8, TENSOR_READING = 16 };
/* Writes the locations and the flags of this rank's tensors into its declaration; the fingerprint, which ranks compare,
   does not cover them. is_required: this rank insists on its algorithm. may_read: private tensors may be read in
   place. */
void tensors_describe(tutti_comm *comm, const struct operation *op, bool is_required, bool may_read);
/* Returns the kind of placement under the assumption that the tensors of all ranks lie as this rank's do, and that
   peers can read private ones. */
enum placement_kind tensors_guess_placement(const tutti_comm *comm, const struct operation *op);
/* Returns true if this rank can read the memory of all other ranks of its host. The first call tests this; without
   memory for the test it returns false, and the next call repeats it. */
bool tensors_can_read_peers(tutti_comm *comm);
/* The placement of the tensors of all ranks, which the ranks of a host derive from the declarations once all have
   arrived. The masks (as in struct plan, valid until the next call) mark ranks with shared tensors and ranks with
   tensors in place. is_required: a rank insists on its algorithm. open: all tensors can be read in place. must_read:
   they must be read in place. */
struct placement { const uint64_t *shared, *in_place; bool is_required, open, must_read; };
/* Returns the placement of the tensors of this host's ranks. Private tensors count as in place, so that few plans serve
   them. With is_read, for a plan that reads private tensors, only those count that really are in place. */
struct placement tensors_get_placement(tutti_comm *comm, const struct operation *op, bool is_read);
/* Finds the addresses of peers' tensors that the launch's program needs. IN_PROGRESS: a mapping is requested, and
   `blocked` gets the word that changes when it is done. */
tutti_status tensors_find_operands(tutti_comm *comm, const struct operation *op);
enum { RELEASE_MS = 2000 };
/* Polls, after a failure, whether peers have released this rank's tensors. The first call that finds one still touching
   them starts RELEASE_MS. Returns true if no living peer touches them any more, or RELEASE_MS have passed; then it logs
   the peers that still may, once. */
bool tensors_poll_release(tutti_comm *comm);
/* Sets *out to the address in this process of the `bytes` bytes at `at` in a rank's shared memory, valid until the next
   call for that rank and use (INPUT, OUTPUT, HELD_RECEIVING, HELD_SENDING). IN_PROGRESS: it is being mapped; the caller
   calls again. INVALID_ARGUMENT: the rank has freed it. */
tutti_status tensor_map_address(tutti_comm *comm, int rank, int use, struct location at, size_t bytes,
    unsigned char **out);
