/* Creates and frees the parts of a communicator; the other files of this folder implement them. */
#include "backend/engine/comm.h"
#include "backend/base/settings.h"
#include "backend/control/snapshot_socket.h"
#include "backend/engine/progress_thread.h"
#include "backend/engine/snapshot.h"
#include "backend/engine/stream_comm.h"
#include "backend/model/cost.h"
#include <stdlib.h>

/* The time that a poll of a network takes. */
enum { NETWORK_POLL_NS = 1000 };
/* The most polls of one wait in the executor; no thread checks for failures meanwhile. */
enum { MOST_POLLS = 50 };

tutti_status comm_init(tutti_comm *comm, int rank, int size, const char *name, int64_t timeout_ms)
{
    comm->timeout_ms = timeout_ms > 0 ? timeout_ms : settings_get()->timeout_ms;
    windows_init(&comm->windows);
    TRY(group_init(&comm->group, rank, size, name));
    process_watch_forks();
    TRY(progress_thread_acquire());
    comm->group.generation = process_generation();
    snapshots_set_writer(snapshot_write_process);
    comm_list_add(comm);
    return algorithms_read_settings(comm->chosen);
}
void comm_set_layout(tutti_comm *comm, struct layout *layout)
{
    comm->group.layout = layout;
    comm->group.host = layout_host(layout, comm->group.rank);
}
tutti_status comm_attach_segments(tutti_comm *comm, const struct segment *segment, const struct segment *network)
{
    struct group *group = &comm->group;
    int64_t streaming = settings_get()->streaming;
    group->segment = segment;
    group->network = network;
    tutti_status status = executor_init(&comm->executor, segment, group->layout, group->rank,
        streaming == 0 ? NULL : stream_find(), streaming < 0);
    /* Even after an error the executor needs its contact, because comm_stop_operations uses it. */
    executor_set_contact(&comm->executor, group_control_of_rank(group, group->rank));
    TRY(status);
    TRY(launcher_init(&comm->launcher, segment->ranks));
    TRY(lateness_init(&comm->lateness, segment->ranks));
    TRY(tensor_access_init(&comm->tensor_access, segment->ranks));
    return group_has_several_hosts(group) ? agreement_create(comm, &comm->agreement) : TUTTI_OK;
}
void comm_set_machine(tutti_comm *comm, const struct machine *machine, int cores, bool fences)
{
    struct group *group = &comm->group;
    struct machine typical = machine_typical();
    bool one_host = !group_has_several_hosts(group);
    /* All hosts have agreed on the parameters of the network. */
    machine_copy_network_costs(&typical, machine);
    launcher_set_machine(&comm->launcher, group->layout, one_host ? cores : group->layout->largest,
        one_host ? machine : &typical, group->segment->tuning);
    struct spin_budget spin_budget = machine_spin_budget(machine, group_uses_links(group) ? NETWORK_POLL_NS : 0);
    /* Ranks that share cores keep the backoff that group_init has set. */
    if (group->segment->ranks <= cores) group->backoff = backoff_of_budget(spin_budget.pauses, spin_budget.yields);
    int polls = group->backoff.pauses / 10;
    /* On several hosts tiles are cut by shared parameters, so their slots must not depend on the caches of one
       machine. */
    size_t ring = one_host ? (size_t)(4 * machine->l2) / (size_t)group->segment->ranks : 0;
    executor_set_tuning(&comm->executor, polls < MOST_POLLS ? polls : MOST_POLLS, (size_t)machine->last, ring, fences);
}
tutti_status comm_check_algorithm(const tutti_comm *comm, const struct algorithm *algorithm)
{
    const struct group *group = &comm->group;
    if (!algorithm || !algorithm->host_memory || !group_has_several_hosts(group)) return TUTTI_OK;
    return status_fail(TUTTI_INVALID_ARGUMENT,
        "%s by algorithm %s needs all ranks on one host, but those of %s are on %d; tutti algorithms lists the others",
        collective_name(algorithm->collective), algorithm->name, group->name, group->layout->hosts);
}
void comm_free(tutti_comm *comm)
{
    stream_comm_release(atomic_load(&comm->streams));
    group_finish(&comm->group);
    free(comm);
}
void comm_finish(tutti_comm *comm)
{
    comm_list_remove(comm);
    agreement_destroy(comm->agreement);
    comm->agreement = NULL;
    router_destroy(comm->router);
    executor_finish(&comm->executor);
    launcher_finish(&comm->launcher);
    lateness_finish(&comm->lateness);
    tensor_access_finish(&comm->tensor_access);
    bool acquired = comm->group.generation;
    group_release_peers(&comm->group);
    if (acquired) progress_thread_release();
}
void comm_announce_leaving(tutti_comm *comm)
{
    const struct group *group = &comm->group;
    struct control *mine = group_control_at_index(group, group_index_of_rank(group, group->rank));
    if (comm->agreement) agreement_announce_leaving(comm);
    atomic_store(&mine->departed, 1);
    if (comm->agreement) agreement_notify_host(comm->agreement);
}
