/* A communicator: one rank's membership of a group. Its parts say by their types who may touch them: the group is
 * constant once joined, the gate is any thread's, the listing is the progress thread's, and all else is the driver's,
 * who holds gate.driver. */
#pragma once
#include "backend/engine/agreement.h"
#include "backend/engine/driver.h"
#include "backend/engine/failure.h"
#include "backend/engine/group.h"
#include "backend/engine/launch.h"
#include "backend/engine/messages.h"
#include "backend/engine/names.h"
#include "backend/engine/progress.h"
#include "backend/engine/queue.h"
#include "backend/engine/rest.h"
#include "backend/engine/tensors.h"

struct tutti_comm {
    struct group group;                                 /* constant */
    _Atomic uint32_t holders;                           /* this memory stays until the last has released it */
    _Atomic bool ended;                                 /* it has left the group, or is about to */
    struct membership *membership;                      /* what joining has left, see join/join.h */
    struct router *router;
    struct agreement *agreement;                              /* between its hosts; NULL: it has one */
    _Atomic(const struct algorithm *) chosen[FAMILY_COUNT];            /* by the user; of any thread */
    _Atomic int64_t timeout_ms;
    _Atomic int priority;
    struct gate gate;
    struct listing listing;
    struct executor executor;                           /* of the driver, from here on */
    struct run_queue run_queue;
    struct messages messages;
    struct launcher launcher;
    struct reach reach;
    struct outcome outcome;                             /* of any thread; written by the driver but for its words */
};
static inline bool comm_has_failed(const tutti_comm *comm) /* a look that costs nothing; see comm_failure */
{
    return atomic_load_explicit(&comm->outcome.failed, memory_order_relaxed);
}
static inline bool comm_is_failing(const tutti_comm *comm) /* or a reason is known, and hosts agree on one */
{
    return comm_has_failed(comm) || (comm->agreement && agreement_is_failing(comm->agreement));
}
static inline bool comm_has_decision(const tutti_comm *comm) /* of several hosts, and nobody has taken it up */
{
    return comm->agreement && agreement_is_over(comm->agreement) && !comm_has_failed(comm);
}
/* Everything but its members. Half of it may be there after an error: comm_finish is due in every case. */
tutti_status comm_init(tutti_comm *comm, int rank, int size, const char *name, int64_t timeout_ms);
/* Its members and their places are known; takes over the layout. */
void comm_place(tutti_comm *comm, struct layout *layout);
/* The segment of its host is mapped, and what stands for the network between hosts that are simulated (else NULL):
   now it can wait for the others, and fail with them. */
tutti_status comm_attach(tutti_comm *comm, const struct segment *segment, const struct segment *network);
/* The machine is known, and how many cores the ranks of this host may use, all of them together. Algorithms are chosen
   by what all ranks of the group know alike: by this on one host, by typical figures on several.
   fences: all ranks of this host admit them (base/fence.h). */
void comm_tune(tutti_comm *comm, const struct machine *machine, int cores, bool fences);
/* INVALID_ARGUMENT when the algorithm (NULL is fine) needs all ranks on one host and they are not. */
tutti_status comm_allows(const tutti_comm *comm, const struct algorithm *algorithm);
void comm_finish(tutti_comm *comm);                     /* what is left can be asked, but runs nothing any more */
void comm_free(tutti_comm *comm);
void comm_pause(const tutti_comm *comm, int64_t n);     /* the n-th fruitless look at something nobody wakes us for */
bool comm_has_left(const tutti_comm *comm, int rank);   /* has destroyed its communicator */
void comm_leave(tutti_comm *comm);                      /* says that this rank has */
