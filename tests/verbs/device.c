/* Devices, their ports and addresses, and contexts. Each device has one Ethernet port; all are on one network. */
#include "tests/verbs/machine.h"
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef ibv_query_port

const struct ibv_gid_entry *device_gid(const struct device *d, uint32_t index)
{
    static const union ibv_gid none;
    if (index >= FAKE_GIDS || !memcmp(&d->gids[index].gid, &none, sizeof none)) return NULL;
    return &d->gids[index];
}
struct device *device_by_gid(const union ibv_gid *gid, uint32_t type)
{
    for (struct device *d = machine.devices; d < machine.devices + FAKE_DEVICES; d++)
        for (uint32_t i = 0; i < FAKE_GIDS; i++) {
            const struct ibv_gid_entry *entry = device_gid(d, i);
            if (entry && entry->gid_type == type && !memcmp(&entry->gid, gid, sizeof *gid)) return d;
        }
    return NULL;
}
bool path_is_valid(const struct device *d, const struct ibv_ah_attr *path)
{
    static const union ibv_gid none;
    return path->is_global && path->port_num == 1 && device_gid(d, path->grh.sgid_index)
        && memcmp(&path->grh.dgid, &none, sizeof none);
}
void device_raise(struct device *d, enum ibv_event_type type)
{
    struct ibv_async_event event = { .event_type = type };
    if (type != IBV_EVENT_DEVICE_FATAL) event.element.port_num = 1;
    for (struct context *c = machine.contexts; c; c = c->next)
        if (c->device == d) events_push(&c->async, event);
}

/* Gives a device three addresses, each as a GID of RoCE v1 and one of RoCE v2: the first device has fe80::1, 10.0.0.1
   and fd00::1, the second the same that end in 2. */
static void device_reset(struct device *d)
{
    static const char *const networks[] = { "fe80::", "::ffff:10.0.0.", "fd00::" };
    memset(d->gids, 0, sizeof d->gids);
    for (uint32_t i = 0; i < FAKE_GIDS; i++)
        d->gids[i] = (struct ibv_gid_entry){ .gid_index = i,
            .port_num = 1,
            .ndev_ifindex = if_nametoindex("lo"),
            .gid_type = i % 2 ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1 };
    for (int i = 0; i < 6; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s%d", networks[i / 2], d->index + 1);
        inet_pton(AF_INET6, text, &d->gids[i].gid);
    }
    d->up = true;
    d->broken = false;
}
void devices_reset(void)
{
    for (int i = 0; i < FAKE_DEVICES; i++) {
        struct device *d = &machine.devices[i];
        d->index = i;
        d->ibv.node_type = IBV_NODE_CA;
        d->ibv.transport_type = IBV_TRANSPORT_IB;
        snprintf(d->ibv.name, sizeof d->ibv.name, "fake_%d", i);
        snprintf(d->ibv.dev_name, sizeof d->ibv.dev_name, "uverbs_fake%d", i);
        device_reset(d);
    }
}
void fake_set_gids(int device, const struct ibv_gid_entry *entries, int count)
{
    machine_lock();
    struct device *d = &machine.devices[device];
    memset(d->gids, 0, sizeof d->gids);
    for (int i = 0; i < count && i < FAKE_GIDS; i++) {
        d->gids[i] = entries[i];
        d->gids[i].gid_index = (uint32_t)i;
        d->gids[i].port_num = 1;
    }
    machine_unlock();
}
void fake_set_port(int device, bool up)
{
    machine_lock();
    struct device *d = &machine.devices[device];
    if (d->up != up) device_raise(d, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
    d->up = up;
    machine_unlock();
    wire_ring();
}
void fake_break_device(int device)
{
    machine_lock();
    struct device *d = &machine.devices[device];
    d->broken = true;
    device_raise(d, IBV_EVENT_DEVICE_FATAL);
    for (uint32_t i = 0; i < machine.pairs_end; i++)
        if (machine.pairs[i] && machine.pairs[i]->device == d) pair_fail(machine.pairs[i]);
    machine_unlock();
    wire_ring();
}

/* ---- what the program calls ---- */
struct ibv_device **ibv_get_device_list(int *count)
{
    int error = call_fails(FAKE_GET_DEVICE_LIST), devices = fake_limits().devices;
    struct ibv_device **list = error ? NULL : calloc(FAKE_DEVICES + 1, sizeof *list);
    if (count) *count = list ? devices : 0;
    if (!list) { errno = error; return NULL; }
    for (int i = 0; i < devices; i++) list[i] = &machine.devices[i].ibv;
    machine.alive[FAKE_LIST]++;
    return list;
}
void ibv_free_device_list(struct ibv_device **list)
{
    machine.alive[FAKE_LIST]--;
    free(list);
}
const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    int error = call_fails(FAKE_OPEN_DEVICE);
    struct context *c = error ? NULL : calloc(1, sizeof *c);
    if (!c) { errno = error; return NULL; }
    error = events_init(&c->async);
    if (!error && (error = wire_start())) events_finish(&c->async);
    if (error) { free(c); errno = error; return NULL; }
    c->device = (struct device *)device;
    c->ibv =
        (struct ibv_context){ .device = device, .async_fd = c->async.descriptor, .cmd_fd = -1, .num_comp_vectors = 1 };
    c->ibv.ops.poll_cq = completion_queue_poll;
    c->ibv.ops.req_notify_cq = completion_queue_arm;
    c->ibv.ops.post_send = pair_post_send;
    c->ibv.ops.post_recv = pair_post_receive;
    c->ibv.ops.post_srq_recv = shared_post_receive;
    machine_lock();
    c->next = machine.contexts;
    machine.contexts = c;
    machine_unlock();
    machine.alive[FAKE_CONTEXT]++;
    return &c->ibv;
}
/* Refuses while objects of the context exist. A real device closes the context all the same. */
int ibv_close_device(struct ibv_context *context)
{
    struct context *c = (struct context *)context, **at = &machine.contexts;
    machine_lock();
    if (c->children) { machine_unlock(); return EBUSY; }
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    machine_unlock();
    wire_stop();
    events_finish(&c->async);
    free(c);
    machine.alive[FAKE_CONTEXT]--;
    return 0;
}
int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *out)
{
    int error = call_fails(FAKE_QUERY_DEVICE);
    if (error) return error;
    struct fake_limits l = fake_limits();
    *out = (struct ibv_device_attr){ .node_guid = (__be64)(((struct context *)context)->device->index + 1),
        .max_mr_size = UINT64_MAX,
        .page_size_cap = 4096,
        .max_qp = l.max_qp,
        .max_qp_wr = l.max_qp_wr,
        .max_srq = l.max_qp,
        .max_srq_wr = l.max_qp_wr,
        .max_srq_sge = l.max_sge,
        .max_sge = l.max_sge,
        .max_sge_rd = l.max_sge,
        .max_cq = 1 << 16,
        .max_cqe = l.max_cqe,
        .max_mr = l.max_mr,
        .max_pd = 1 << 16,
        .max_qp_rd_atom = l.max_rd_atomic,
        .max_qp_init_rd_atom = l.max_rd_atomic,
        .max_res_rd_atom = l.max_rd_atomic * l.max_qp,
        .atomic_cap = IBV_ATOMIC_NONE,
        .max_ah = 1 << 16,
        .max_pkeys = 1,
        .phys_port_cnt = 1 };
    snprintf(out->fw_ver, sizeof out->fw_ver, "fake");
    return 0;
}
/* Writes the fields that all versions of this function write. The header's inline function sets the later ones. */
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *out)
{
    int error = call_fails(FAKE_QUERY_PORT);
    if (error || port != 1) return error ? error : EINVAL;
    machine_lock();
    bool up = ((struct context *)context)->device->up;
    struct ibv_port_attr attr = { .state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN,
        .max_mtu = IBV_MTU_4096,
        .active_mtu = machine.limits.mtu,
        .gid_tbl_len = FAKE_GIDS,
        .max_msg_sz = machine.limits.max_message,
        .pkey_tbl_len = 1,
        .active_width = 2,
        .active_speed = 16,
        .phys_state = up ? 5 : 3,
        .link_layer = IBV_LINK_LAYER_ETHERNET };
    machine_unlock();
    memcpy(out, &attr, offsetof(struct ibv_port_attr, port_cap_flags2));
    return 0;
}
int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *out)
{
    int error = call_fails(FAKE_QUERY_GID);
    if (!error && (port != 1 || index < 0 || index >= FAKE_GIDS)) error = EINVAL;
    if (error) { errno = error; return -1; }
    machine_lock();
    *out = ((struct context *)context)->device->gids[index].gid;
    machine_unlock();
    return 0;
}
/* Writes the entries that are in use. `entry_bytes` is the size of an entry for the program, which a later header may
   have made longer. */
ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t most, uint32_t flags,
    size_t entry_bytes)
{
    int error = call_fails(FAKE_QUERY_GID);
    if (error) return -error;
    if (flags || entry_bytes < sizeof *entries) return -EINVAL;
    size_t found = 0;
    machine_lock();
    for (uint32_t i = 0; i < FAKE_GIDS && found < most; i++) {
        const struct ibv_gid_entry *entry = device_gid(((struct context *)context)->device, i);
        if (!entry) continue;
        memset((char *)entries + found * entry_bytes, 0, entry_bytes);
        memcpy((char *)entries + found++ * entry_bytes, entry, sizeof *entry);
    }
    machine_unlock();
    return (ssize_t)found;
}
