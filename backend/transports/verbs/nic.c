/* What a port of a device is given: a protection domain, one queue of completions for all, one queue of receives for
   all pairs. A receive has no buffer: messages are written into the box of their pair, and an immediate says so. */
#include "backend/transports/verbs/nic.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/base/random.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

tutti_status nic_refused(const struct nic *nic, const char *what)
{
    int error = errno;
    return status_fail(TUTTI_SYSTEM, "%s gives no %s: %s%s", nic->port ? nic->port->name : "the device", what,
        strerror(error),
        error == ENOMEM ? " (often it is locked memory that lacks: ulimit -l must say unlimited, by "
                          "/etc/security/limits.conf, LimitMEMLOCK= of a systemd unit or docker --ulimit memlock=-1)"
                        : "");
}
/* ---- made ---- */
static tutti_status choose_port(struct nic *nic, const struct fabric_place *place)
{
    const struct device_ground ground = { .interface = place->pretended ? NULL : place->device };
    int order[PORTS_MOST];
    TRY(verbs_library_load());
    TRY(devices_create(&ground, &nic->devices));
    devices_order(nic->devices, -1, NULL, order);
    nic->port = &nic->devices->ports[order[0]];
    int error = verbs.ibv_query_device(nic->port->context, &nic->about);
    if (error) errno = error;
    return error ? nic_refused(nic, "description of itself") : TUTTI_OK;
}
static int smaller(int a, int b) { return a < b ? a : b; }
/* Every work request may end by itself, with an error, even one that is not signalled. */
static int entries_for(int pairs) { return RECEIVES + 4 * GREETING_SLOTS + pairs * SENDS; }
static tutti_status make_queues(struct nic *nic)
{
    struct ibv_context *context = nic->port->context;
    nic->domain = verbs.ibv_alloc_pd(context);
    if (!nic->domain) return nic_refused(nic, "protection domain");
    nic->channel = verbs.ibv_create_comp_channel(context);
    if (!nic->channel) return nic_refused(nic, "channel for completions");
    int flags = fcntl(nic->channel->fd, F_GETFL);
    fcntl(nic->channel->fd, F_SETFL, flags | O_NONBLOCK);
    flags = fcntl(context->async_fd, F_GETFL);
    fcntl(context->async_fd, F_SETFL, flags | O_NONBLOCK);
    int entries = smaller(entries_for(PAIRS_AT_FIRST), nic->about.max_cqe);
    nic->completions = verbs.ibv_create_cq(context, entries, NULL, nic->channel, 0);
    if (!nic->completions) return nic_refused(nic, "queue of completions");
    struct ibv_srq_init_attr how = { .attr = {
                                         .max_wr = (uint32_t)smaller(RECEIVES, nic->about.max_srq_wr), .max_sge = 1 } };
    nic->receives = verbs.ibv_create_srq(nic->domain, &how);
    if (!nic->receives) return nic_refused(nic, "shared queue of receives");
    nic->used_receives = smaller(RECEIVES, nic->about.max_srq_wr);
    return nic_post_receives(nic) ? TUTTI_OK : nic_refused(nic, "receive");
}
tutti_status nic_create(const struct fabric_place *place, struct nic **out)
{
    struct nic *nic = *out = memory_zeroed(1, sizeof *nic);
    if (!nic) return status_fail(TUTTI_NO_MEMORY, "no memory for a device");
    TRY(choose_port(nic, place));
    TRY(make_queues(nic));
    TRY(random_fill(&nic->psn, sizeof nic->psn));
    TRY(registration_create(nic->domain, (struct registration_limits){ 0, 0 }, &nic->memory));
    TRY(greeter_init(nic));
    LOG(INFO, "verbs: %s, by GID %d", nic->port->name, nic->port->gid.index);
    return TUTTI_OK;
}
void nic_destroy(struct nic *nic)
{
    if (!nic) return;
    greeter_finish(nic);
    registration_destroy(nic->memory);
    if (nic->receives) verbs.ibv_destroy_srq(nic->receives);
    if (nic->completions) verbs.ibv_destroy_cq(nic->completions);
    if (nic->channel) verbs.ibv_destroy_comp_channel(nic->channel);
    if (nic->domain) verbs.ibv_dealloc_pd(nic->domain);
    devices_destroy(nic->devices);
    free(nic);
}
void nic_card(const struct nic *nic, struct card *out)
{
    const struct device_port *port = nic->port;
    *out = (struct card){
        .pair = nic->greeter.pair->qp_num, .lid = port->lid, .ethernet = port->ethernet, .mtu = (uint8_t)port->mtu
    };
    memcpy(out->gid, &port->gid.raw, sizeof out->gid);
}

/* ---- found and fed ---- */
tutti_status nic_expect_pair(struct nic *nic)
{
    int needed = entries_for(nic->pairs + 1), twice = entries_for(2 * nic->pairs);
    if (needed <= nic->completions->cqe) return TUTTI_OK;
    if (needed > nic->about.max_cqe)
        return status_fail(TUTTI_SYSTEM,
            "%s has room for %d completions, and connections with %d processes need %d: TUTTI_TRANSPORT=ucx on all "
            "hosts needs fewer",
            nic->port->name, nic->about.max_cqe, nic->pairs + 1, needed);
    errno = verbs.ibv_resize_cq(nic->completions, smaller(twice, nic->about.max_cqe));
    return errno ? nic_refused(nic, "larger queue of completions") : TUTTI_OK;
}
struct verbs_endpoint *nic_find(const struct nic *nic, uint32_t pair)
{
    struct verbs_endpoint *e = nic->bucket[pair % PAIR_BUCKETS];
    while (e && e->pair->qp_num != pair) e = e->next_of_bucket;
    return e;
}
bool nic_post_receives(struct nic *nic)
{
    struct ibv_recv_wr list[RECEIVES_AT_ONCE], *bad;
    while (nic->used_receives > 0) {
        int count = smaller(nic->used_receives, RECEIVES_AT_ONCE);
        for (int i = 0; i < count; i++) list[i] = (struct ibv_recv_wr){ .next = i + 1 < count ? &list[i + 1] : NULL };
        errno = ibv_post_srq_recv(nic->receives, list, &bad);
        if (errno) return false;
        nic->used_receives -= count;
    }
    return true;
}
