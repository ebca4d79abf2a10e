/* A device is attached to one socket; data of a core on another socket crosses the link between the sockets. */
#include "backend/transports/verbs/device/device.h"
#include "backend/transports/verbs/device/sysfs.h"
#include <sched.h>
#include <string.h>

static int numa_node_of_core(int core, const char *sysfs)
{
    char list[512];
    for (int node = 0; sysfs_read_line(list, sizeof list, "%s/devices/system/node/node%d/cpulist", sysfs, node); node++)
        if (sysfs_list_contains(list, core)) return node;
    return -1;
}
/* Returns the distance of two nodes as the firmware reports it; 10 means the same node. */
static int numa_node_distance(int node, int other, const char *sysfs)
{
    enum { UNKNOWN = 255 };
    char line[512], *rest = NULL;
    if (node < 0 || !sysfs_read_line(line, sizeof line, "%s/devices/system/node/node%d/distance", sysfs, node))
        return UNKNOWN;
    char *word = strtok_r(line, " ", &rest);
    for (int i = 0; word && i < other; i++) word = strtok_r(NULL, " ", &rest);
    return word && other >= 0 ? sysfs_parse_number(word, UNKNOWN) : UNKNOWN;
}
/* Returns the NUMA distance (kernel units; 0: the same socket) between the core and the port's device. */
static int device_port_distance(const struct device_port *p, int core, int node, const char *sysfs)
{
    char line[512];
    const char *device = verbs.ibv_get_device_name(p->context->device);
    sysfs_read_line(line, sizeof line, "%s/class/infiniband/%s/device/local_cpulist", sysfs, device);
    if (sysfs_list_contains(line, core)) return 0;
    sysfs_read_line(line, sizeof line, "%s/class/infiniband/%s/device/numa_node", sysfs, device);
    return numa_node_distance(node, sysfs_parse_number(line, -1), sysfs);
}
void devices_order_by_distance(const struct devices *d, int core, const char *sysfs, int order[PORTS_MOST])
{
    int distance[PORTS_MOST];
    const char *root = sysfs ? sysfs : "/sys";
    if (core < 0) core = sched_getcpu();
    int node = numa_node_of_core(core, root);
    for (int i = 0; i < d->count; i++) {
        int at = i, mine = device_port_distance(&d->ports[i], core, node, root);
        for (; at > 0 && distance[at - 1] > mine; at--) {
            distance[at] = distance[at - 1];
            order[at] = order[at - 1];
        }
        distance[at] = mine;
        order[at] = i;
    }
}
