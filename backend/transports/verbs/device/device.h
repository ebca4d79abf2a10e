/* Finds the ports of this host's RDMA devices that lead to the other hosts, their addresses, and their distance from
 * a core. A wrong setting or setup (no device, no active port, an unknown name, no RoCE v2 address on the interface)
 * is an error that lists the available ports. */
#pragma once
#include "backend/transports/verbs/device/gid.h"

enum { DEVICES_MOST = 32, PORTS_MOST = 64, PORT_NAME_BYTES = IBV_SYSFS_NAME_MAX + 12 };
struct device_port {
    /* The names of the device and the port, such as "mlx5_0:1". */
    char name[PORT_NAME_BYTES];
    /* The ports of a device share its context. */
    struct ibv_context *context;
    /* The number of the port on its device, from 1. */
    uint8_t number;
    /* RoCE (is_ethernet) addresses every packet by GID, InfiniBand by LID. */
    bool is_ethernet;
    uint16_t lid;
    enum ibv_mtu mtu;
    /* `message_bytes` is the limit of one work request. */
    uint32_t message_bytes;
    struct gid gid;
};
struct devices {
    struct device_port ports[PORTS_MOST];
    int count;
    /* The contexts of the devices that are open. */
    struct ibv_context *opened[DEVICES_MOST];
    int opened_count;
};
struct device_environment {
    /* `interface` is the network interface that leads to the other hosts; NULL accepts any. */
    const char *interface;
    /* Addresses of this family (AF_INET or AF_INET6) are preferred; 0 means no preference. */
    int family;
    /* `sysfs` is the folder to read instead of /sys, or NULL. */
    const char *sysfs;
};
/* Opens the devices whose ports are usable; at least one port must be. The ports are those that TUTTI_VERBS_DEVICE
   names, otherwise all active ones with an address on environment->interface (an InfiniBand port needs none). The
   caller has called verbs_library_load. UNSUPPORTED: no port is usable. INVALID_ARGUMENT: a setting names a missing
   port. */
tutti_status devices_create(const struct device_environment *environment, struct devices **out);
/* Closes the devices, and frees the list; NULL is allowed. */
void devices_destroy(struct devices *devices);
/* Writes the indices of the ports to `order`, the nearest to the core first (-1 means the core of this thread). The
   kernel reports which cores and memory a device is attached to. Ports of equal distance keep their order. `sysfs` is
   the folder to read instead of /sys, or NULL. */
void devices_order_by_distance(const struct devices *devices, int core, const char *sysfs, int order[PORTS_MOST]);
/* Writes a report on every port of this host, such as "mlx5_0:1 is used with 10.0.0.2 on eth0 (GID 3, MTU 4096);
   mlx5_1:1 is down". Returns the errors of devices_create if no port is usable. */
tutti_status devices_describe(const struct device_environment *environment, char *out, size_t bytes);
