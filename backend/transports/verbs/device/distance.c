/* Orders ports by their distance from a core. A device is attached to one socket, and data of a core on another socket
   crosses the link between the sockets. */
#include "backend/transports/verbs/device/device.h"
#include "backend/transports/verbs/device/sysfs.h"
#include <sched.h>
#include <string.h>

/* Returns the NUMA node of a core, or -1 if the kernel does not report it. */
static int numa_node_of_core(int core, const char *sysfs)
{
    char list[512];
    for (int node = 0; sysfs_read_line(list, sizeof list, "%s/devices/system/node/node%d/cpulist", sysfs, node); node++)
        if (sysfs_list_contains(list, core)) return node;
    return -1;
}
/* Returns the distance of two NUMA nodes as the firmware reports it; 10 means the same node, 255 an unknown
   distance. */
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
/* Returns the NUMA distance between the core, which is on `node`, and the port's device. 0: the core is local to the
   device; otherwise as numa_node_distance. */
static int device_port_distance(const struct device_port *port, int core, int node, const char *sysfs)
{
    char line[512];
    const char *device = verbs.ibv_get_device_name(port->context->device);
    sysfs_read_line(line, sizeof line, "%s/class/infiniband/%s/device/local_cpulist", sysfs, device);
    if (sysfs_list_contains(line, core)) return 0;
    sysfs_read_line(line, sizeof line, "%s/class/infiniband/%s/device/numa_node", sysfs, device);
    return numa_node_distance(node, sysfs_parse_number(line, -1), sysfs);
}
void devices_order_by_distance(const struct devices *devices, int core, const char *sysfs, int order[PORTS_MOST])
{
    int distance[PORTS_MOST];
    const char *root = sysfs ? sysfs : "/sys";
    if (core < 0) core = sched_getcpu();
    int node = numa_node_of_core(core, root);
    for (int i = 0; i < devices->count; i++) {
        int position = i, own_distance = device_port_distance(&devices->ports[i], core, node, root);
        for (; position > 0 && distance[position - 1] > own_distance; position--) {
            distance[position] = distance[position - 1];
            order[position] = order[position - 1];
        }
        distance[position] = own_distance;
        order[position] = i;
    }
}
