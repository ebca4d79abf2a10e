/* The ports of this host's RDMA devices that lead to the other hosts: which serve, how each is addressed, and which are
 * near to a core. What a user can have wrong (no device, none active, a name that is none, no address of RoCE v2 on the
 * interface) is an error that lists what there is. */
#pragma once
#include "backend/transports/verbs/gid.h"

enum { DEVICES_MOST = 32, PORTS_MOST = 64, PORT_NAME_BYTES = IBV_SYSFS_NAME_MAX + 12 };
struct device_port {
    char name[PORT_NAME_BYTES]; /* "mlx5_0:1" */
    struct ibv_context *context; /* the ports of a device have it in common */
    uint8_t number;
    bool ethernet; /* RoCE: every packet carries the GID; else InfiniBand, by the LID */
    uint16_t lid;
    enum ibv_mtu mtu;
    uint32_t message_bytes; /* the most that a work request may move */
    struct gid gid;
};
struct devices {
    struct device_port ports[PORTS_MOST];
    int count;
    struct ibv_context *opened[DEVICES_MOST];
    int opened_count;
};
struct device_environment {
    const char *interface; /* the network interface that leads to the other hosts; NULL: any */
    int family; /* AF_INET or AF_INET6: addresses of it are preferred; 0: no matter */
    const char *sysfs; /* NULL: /sys */
};
/* After verbs_library_load. Opens the devices whose ports serve, one at least: those that TUTTI_VERBS_DEVICE names,
   else all that are active and have an address on that interface (those of InfiniBand always do). UNSUPPORTED: there
   are none. INVALID_ARGUMENT: a setting asks for what is not there. */
tutti_status devices_create(const struct device_environment *environment, struct devices **out);
void devices_destroy(struct devices *devices);
/* Indices of the ports, those nearest to that core first (-1: to the one this thread is on), as the kernel tells which
   cores and memory a device is attached to; equally near ones stay in their order. */
void devices_order(const struct devices *devices, int core, const char *sysfs, int order[PORTS_MOST]);
/* Of all ports of this host, whether they serve or not: "mlx5_0:1 serves by 10.0.0.2 on eth0 (GID 3, MTU 4096);
   mlx5_1:1 is down". Errors, where none serves, as of devices_create. */
tutti_status devices_describe(const struct device_environment *environment, char *out, size_t bytes);
