/* Opens a communicator for operations on CUDA streams. The ranks report four times: when the driver and the kernels
   are open, when each has the words, when each has its slots, and when each has opened those of its peers. So it is
   open on all ranks or on none. After a failed attempt the stream thread frees the slots, when no rank has those of
   another open. */
#include "backend/base/memory.h"
#include "backend/base/settings.h"
#include "backend/comm/comm.h"
#include "backend/engine/stream_thread.h"
#include "backend/streams/kernel_image.h"
#include <stdlib.h>
#include <string.h>

/* The report of one rank to all ranks: its status, why it has failed, and where its slots are. */
struct cuda_report {
    int64_t status, device;
    struct stream_address address;
    char why[248];
};
/* One attempt to open, on one rank. */
struct cuda_opening {
    tutti_comm *comm;
    int device;
    const void *image;
    struct stream_comm *streams;
    /* The reports of all ranks. */
    struct cuda_report *all;
};

/* Gathers the reports of all ranks. `mine` is this rank's status. Fails with the cause of a rank that has failed. */
static tutti_status cuda_opening_exchange_reports(struct cuda_opening *opening, tutti_status status)
{
    const struct group *group = &opening->comm->group;
    struct cuda_report mine = { .status = status, .device = opening->device };
    const struct stream_site *site = opening->streams ? opening->streams->site : NULL;
    if (status == TUTTI_OK && site) mine.status = stream_site_export_address(site, &mine.address);
    if (mine.status != TUTTI_OK) strncpy(mine.why, status_detail(), sizeof mine.why - 1);
    TRY(comm_gather(opening->comm, &mine, sizeof mine, opening->all));
    for (int r = 0; r < group->size; r++) {
        const struct cuda_report *report = &opening->all[r];
        if (report->status != TUTTI_OK)
            return status_refuse((tutti_status)report->status,
                "%s cannot be opened for CUDA streams, because rank %d failed with device %d: %.247s", group->name, r,
                (int)report->device, report->why);
    }
    return TUTTI_OK;
}
/* Refuses ranks of one process on one device. The context orders work of its legacy default stream with that of others,
   and some calls wait for all its streams, so a rank may wait for the stream by which it should arrive. */
static tutti_status cuda_opening_check_devices(const struct cuda_opening *opening)
{
    const struct group *group = &opening->comm->group;
    for (int b = 1; b < group->size; b++) {
        for (int a = 0; a < b; a++) {
            if (opening->all[a].device != opening->all[b].device
                || !member_shares_process(&group->members[a], &group->members[b]))
                continue;
            return status_refuse(TUTTI_UNSUPPORTED,
                "%s cannot be opened for CUDA streams, because rank %d and rank %d are one process and use device %d, "
                "where one may wait for the other without end: start one process per rank, or set TUTTI_CUDA=0, which "
                "takes the way through host memory",
                group->name, a, b, (int)opening->all[a].device);
        }
    }
    return TUTTI_OK;
}
/* Opens the driver and the kernels, and adds this communicator to the stream thread. */
static tutti_status cuda_opening_prepare(struct cuda_opening *opening)
{
    const struct settings *settings = settings_get();
    if (!strcmp(settings->cuda, "0")) return status_fail(TUTTI_UNSUPPORTED, "TUTTI_CUDA is 0");
    TRY(cuda_driver_load(settings->cuda));
    TRY(stream_kernel_image_open(settings->cuda_kernels[0] ? settings->cuda_kernels : NULL, &opening->image));
    TRY(stream_comm_create(opening->comm, &opening->streams));
    return stream_thread_add(opening->streams);
}
/* Allocates this rank's slots. */
static tutti_status cuda_opening_create_site(const struct cuda_opening *opening)
{
    struct stream_comm *streams = opening->streams;
    struct stream_settings settings = {
        .rank = streams->rank,
        .ranks = streams->ranks,
        .device = opening->device,
        .slot_bytes = (size_t)settings_get()->cuda_slot_bytes,
        .words = streams->words,
        .image = opening->image,
    };
    return stream_site_create(&settings, &streams->site);
}
/* Opens the slots of the peers. */
static tutti_status cuda_opening_connect_peers(const struct cuda_opening *opening)
{
    int ranks = opening->streams->ranks;
    struct stream_address *addresses = memory_alloc_zeroed((size_t)ranks, sizeof *addresses);
    if (!addresses) return status_fail(TUTTI_NO_MEMORY, "no memory to connect the streams of %d ranks", ranks);
    for (int i = 0; i < ranks; i++) addresses[i] = opening->all[group_rank_at_index(&opening->comm->group, i)].address;
    tutti_status status = stream_site_connect_peers(opening->streams->site, addresses);
    free(addresses);
    return status;
}
/* Gives the communicator its part. Another thread that destroys it meanwhile either finds the part, or has set
   leaves_group before. */
static tutti_status cuda_opening_publish(struct cuda_opening *opening)
{
    tutti_comm *comm = opening->comm;
    struct stream_comm *streams = opening->streams;
    /* From here on the communicator is the holder. */
    opening->streams = NULL;
    atomic_store(&comm->streams, streams);
    bool leaves = atomic_load(&comm->leaves_group);
    if (!leaves && stream_thread_finish_opening(streams)) return TUTTI_OK;
    stream_thread_discard(streams);
    return status_fail(TUTTI_ABORTED, "this communicator (%s, rank %d) was destroyed while it was opened for CUDA",
        comm->group.name, comm->group.rank);
}
static tutti_status cuda_opening_run(struct cuda_opening *opening)
{
    tutti_comm *comm = opening->comm;
    TRY(cuda_opening_exchange_reports(opening, cuda_opening_prepare(opening)));
    TRY(cuda_opening_check_devices(opening));
    /* A rank that lacks the words cannot announce that it uses the slots of its peers no more, so that none frees them.
       Therefore no rank allocates slots before all ranks have the words. */
    TRY(cuda_opening_exchange_reports(opening,
        comm_allocate_common(comm, stream_words_count_bytes(comm->group.size), &opening->streams->words)));
    TRY(cuda_opening_exchange_reports(opening, cuda_opening_create_site(opening)));
    TRY(cuda_opening_exchange_reports(opening, cuda_opening_connect_peers(opening)));
    return cuda_opening_publish(opening);
}
/* Gives up what an attempt has made. */
static void cuda_opening_undo(struct stream_comm *streams)
{
    if (!streams) return;
    if (atomic_load(&streams->holders) > 1) stream_thread_discard(streams);
    else stream_comm_close(streams);
    stream_comm_release(streams);
}
tutti_status comm_open_cuda(tutti_comm *comm, int device)
{
    const struct group *group = &comm->group;
    if (group_has_several_hosts(group))
        return status_refuse(TUTTI_UNSUPPORTED,
            "%s has ranks on %d hosts: operations on CUDA streams need all ranks on one host", group->name,
            group->layout->hosts);
    if (atomic_exchange(&comm->opens_streams, true))
        return status_refuse(TUTTI_INVALID_ARGUMENT, "%s is open for CUDA streams already, or another thread opens it",
            group->name);
    struct cuda_opening opening = { .comm = comm, .device = device };
    opening.all = memory_alloc_zeroed((size_t)group->size, sizeof *opening.all);
    tutti_status status = opening.all
        ? cuda_opening_run(&opening)
        : status_fail(TUTTI_NO_MEMORY, "rank %d has no memory to open %s for CUDA streams", group->rank, group->name);
    if (status != TUTTI_OK) {
        cuda_opening_undo(opening.streams);
        atomic_store(&comm->opens_streams, false);
    }
    free(opening.all);
    return status;
}
