/* A communicator: one rank's membership of a group. The group is constant once the rank has joined. Any thread may use
 * `submission` and the atomic fields. The progress thread owns `progress_entry`, except its `requests`. The driver, the
 * thread that holds submission.driver, owns the parts from `executor` to `tensor_access`. */
#pragma once
#include "backend/engine/activity.h"
#include "backend/engine/agreement.h"
#include "backend/engine/comm_list.h"
#include "backend/engine/deferral.h"
#include "backend/engine/driver.h"
#include "backend/engine/failure.h"
#include "backend/engine/fork.h"
#include "backend/engine/group.h"
#include "backend/engine/lateness.h"
#include "backend/engine/launch.h"
#include "backend/engine/messages.h"
#include "backend/engine/progress_list.h"
#include "backend/engine/queue.h"
#include "backend/engine/reasons.h"
#include "backend/engine/tensors.h"
#include "backend/engine/window_list.h"
#include "backend/engine/windows.h"
#include "backend/tuning/algorithm_names.h"

struct stream_comm;
struct tutti_comm {
    struct group group;
    /* The number of references; the last release frees the communicator. */
    _Atomic uint32_t holders;
    /* Set when this rank begins to leave the group: in comm_destroy or at the last release. An abort or a failure does
       not set it. */
    _Atomic bool leaves_group;
    /* State that joining leaves behind; see join/join.h. */
    struct membership *membership;
    struct router *router;
    /* The agreement between its hosts. NULL: the group has one host. */
    struct agreement *agreement;
    /* The algorithm that the user has set for each collective, or NULL. Any thread reads and sets it. */
    _Atomic(const struct algorithm *) chosen[COLLECTIVE_COUNT];
    _Atomic int64_t timeout_ms;
    _Atomic int priority;
    /* Its part for operations on CUDA streams, or NULL. Set once, when it is opened for them; a holder. */
    _Atomic(struct stream_comm *) streams;
    /* It is open for CUDA streams, or a thread is opening it. */
    _Atomic bool opens_streams;
    struct submission submission;
    struct progress_entry progress_entry;
    /* The driver owns the fields from here to tensor_access. */
    struct executor executor;
    struct run_queue run_queue;
    struct messages messages;
    struct windows windows;
    struct launcher launcher;
    struct lateness lateness;
    struct tensor_access tensor_access;
    /* Any thread reads the outcome and sets `lost` and `stop`. The driver writes the rest. */
    struct outcome outcome;
    /* The thread that waits writes its operation here, and any thread reads it. */
    struct activity activity;
    /* The entry in the list of this process's communicators, which owns it. */
    struct comm_entry entry;
};
/* Returns true if the communicator has failed. comm_get_failure also sets this thread's last error. */
static inline bool comm_has_failed(const tutti_comm *comm)
{
    return atomic_load_explicit(&comm->outcome.failed, memory_order_relaxed);
}
/* Returns true if the communicator has failed, or a reason is known and the hosts are still agreeing on one. */
static inline bool comm_is_failing(const tutti_comm *comm)
{
    return comm_has_failed(comm) || (comm->agreement && agreement_is_failing(comm->agreement));
}
/* Returns true if the hosts have decided on a cause that this communicator has not adopted yet. */
static inline bool comm_has_decision(const tutti_comm *comm)
{
    return comm->agreement && agreement_has_decided(comm->agreement) && !comm_has_failed(comm);
}
/* Initialises a zeroed communicator, except for its members. timeout_ms 0 takes TUTTI_TIMEOUT_MS. The caller must call
   comm_finish even after an error. */
tutti_status comm_init(tutti_comm *comm, int rank, int size, const char *name, int64_t timeout_ms);
/* Sets the hosts of the members. The communicator owns the layout from now on. */
void comm_set_layout(tutti_comm *comm, struct layout *layout);
/* Attaches the mapped segment of this host, and the segment that stands for the network between simulated hosts (else
   NULL). From now on this rank can wait for the others, and fail with them. */
tutti_status comm_attach_segments(tutti_comm *comm, const struct segment *segment, const struct segment *network);
/* Sets the machine parameters. `cores` is the number of cores that all ranks of this host may use together. `fences`:
   all ranks of this host admit fences (base/fence.h). Algorithms are chosen by parameters that all ranks share: on one
   host these; on several hosts typical ones with the network costs of `machine`, on which the hosts have agreed. */
void comm_set_machine(tutti_comm *comm, const struct machine *machine, int cores, bool fences);
/* Returns INVALID_ARGUMENT if the algorithm needs all ranks on one host and the group has several hosts, else OK. NULL
   is OK. */
tutti_status comm_check_algorithm(const tutti_comm *comm, const struct algorithm *algorithm);
/* Releases all but the tables of the group. The communicator can still be queried, but runs no more operations. */
void comm_finish(tutti_comm *comm);
/* Frees the tables of the group and the communicator, after comm_finish. */
void comm_free(tutti_comm *comm);
/* Publishes to the other ranks that this rank has destroyed its communicator. */
void comm_announce_leaving(tutti_comm *comm);
