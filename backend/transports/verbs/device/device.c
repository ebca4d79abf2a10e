/* Examines every port. The same report of each port appears in errors and in tutti info. */
#include "backend/transports/verbs/device/device.h"
#include "backend/base/memory.h"
#include "backend/base/settings.h"
#include "backend/transports/verbs/device/sysfs.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPORT_BYTES = 700 };
/* The state of a search for usable ports. */
struct search {
    const struct device_environment *environment;
    /* `sysfs` is the folder to read as /sys. `wanted_names` is the value of TUTTI_VERBS_DEVICE, which may be empty. */
    const char *sysfs, *wanted_names;
    struct devices *devices;
    /* `report` has the result of each port, `names` the names of all ports. */
    char report[REPORT_BYTES], names[REPORT_BYTES];
    /* A NULL name of the interface accepts any. */
    struct gid_interface interface;
    /* The number of wanted ports that are not usable. */
    int refused_count;
    /* One of them has a usable address, but on another interface. */
    bool is_elsewhere;
};

/* ---- report ---- */
/* Appends a formatted text to `text`, and `separator` before it unless `text` is empty. */
__attribute__((format(printf, 3, 0))) static void report_append_text(char text[REPORT_BYTES], const char *separator,
    const char *format, va_list arguments)
{
    size_t used = strlen(text);
    if (used) used += (size_t)snprintf(text + used, REPORT_BYTES - used, "%s", separator);
    if (used < REPORT_BYTES) vsnprintf(text + used, REPORT_BYTES - used, format, arguments);
}
/* Adds the name of a port, or of a device that cannot be opened, to search->names. */
static void search_add_name(struct search *search, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void search_add_name(struct search *search, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    report_append_text(search->names, ", ", format, arguments);
    va_end(arguments);
}
/* Adds the result of a port to the report. */
static void search_report_port(struct search *search, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void search_report_port(struct search *search, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    report_append_text(search->report, "; ", format, arguments);
    va_end(arguments);
}
/* Adds to the report why a wanted port is not usable, and counts it. */
static void search_report_refused(struct search *search, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void search_report_refused(struct search *search, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    report_append_text(search->report, "; ", format, arguments);
    va_end(arguments);
    search->refused_count++;
}

/* ---- names ---- */
/* Returns whether an item of TUTTI_VERBS_DEVICE, which is `length` long, names this port of the device. port 0: any
   port of the device. */
static bool device_item_matches(const char *item, size_t length, const char *device, int port)
{
    size_t bytes = strlen(device);
    if (length < bytes || strncmp(item, device, bytes) != 0) return false;
    /* A device without a port number means all of its ports. */
    if (length == bytes) return true;
    return item[bytes] == ':' && (port == 0 || strtol(item + bytes + 1, NULL, 10) == port);
}
/* Returns whether a list of names such as "mlx5_0:1,mlx5_1" names this port of the device, or is empty. port 0: any
   port of the device. */
static bool device_is_wanted(const char *wanted_names, const char *device, int port)
{
    for (const char *item = wanted_names; *item;) {
        size_t length = strcspn(item, ",");
        if (device_item_matches(item, length, device, port)) return true;
        item += length + (item[length] == ',');
    }
    return !*wanted_names;
}
/* Returns whether a list of names such as "mlx5_0:1, mlx5_1:1" has the port or device that `item`, which is `length`
   long, names. */
static bool device_names_include(const char *names, const char *item, size_t length)
{
    for (const char *name = names; *name;) {
        size_t bytes = strcspn(name, ",");
        bool port = length == bytes && strncmp(item, name, bytes) == 0;
        if (port || (length < bytes && name[length] == ':' && strncmp(item, name, length) == 0)) return true;
        name += bytes;
        name += strspn(name, ", ");
    }
    return false;
}
/* Fails if TUTTI_VERBS_DEVICE names a device or port that this host does not have. */
static tutti_status search_check_names(const struct search *search)
{
    for (const char *item = search->wanted_names; *item;) {
        size_t length = strcspn(item, ",");
        if (!device_names_include(search->names, item, length))
            return status_fail(TUTTI_INVALID_ARGUMENT,
                "TUTTI_VERBS_DEVICE names %.*s, which is not an RDMA device or port of this host; available are %s",
                (int)size_smaller(length, 100), item, search->names);
        item += length + (item[length] == ',');
    }
    return TUTTI_OK;
}

/* ---- one port ---- */
/* Chooses the GID (address) of a port from its table. false: no GID is usable, and the report has the reason. */
static bool search_choose_gid(struct search *search, struct device_port *port, const struct gid_table *table)
{
    char all[GIDS_TEXT_BYTES];
    int64_t index = settings_get()->verbs_gid_index;
    const char *interface = *search->wanted_names ? NULL : search->environment->interface;
    const struct gid *found = NULL;
    if (index >= 0) found = gid_table_find_index(table, (int)index);
    else if (!port->is_ethernet) found = gid_table_find_index(table, 0);
    else
        found =
            gid_table_choose(table, search->interface.name ? &search->interface : NULL, search->environment->family);
    if (!found && index < 0 && port->is_ethernet && !interface)
        found = gid_table_choose(table, NULL, search->environment->family);
    if (found) {
        port->gid = *found;
        return true;
    }
    gid_table_print(table, all);
    if (index >= 0)
        search_report_refused(search, "%s has no GID %d, which TUTTI_VERBS_GID_INDEX asks for (it has %s)", port->name,
            (int)index, all);
    else if (!port->is_ethernet) search_report_refused(search, "%s has no GID", port->name);
    else if (!interface) search_report_refused(search, "%s has no RoCE v2 address (it has %s)", port->name, all);
    else
        search_report_refused(search, "%s has no RoCE v2 address on network interface %s (it has %s)", port->name,
            interface, all);
    search->is_elsewhere |= index < 0 && interface && gid_table_choose(table, NULL, 0);
    return false;
}
/* Returns why a port is not usable, to follow "<port> is", or NULL if it is usable. */
static const char *port_find_problem(const struct ibv_context *context, const struct ibv_port_attr *port)
{
    static const char *const states[] = { "in an unknown state", "down", "starting (no subnet manager yet?)",
        "armed, not active yet" };
    if (context->device->transport_type != IBV_TRANSPORT_IB) return "of a kind without datagrams";
    if (port->state == IBV_PORT_ACTIVE || port->state == IBV_PORT_ACTIVE_DEFER) return NULL;
    return (unsigned)port->state < 4 ? states[port->state] : states[0];
}
/* Adds port `number` of a device to the usable ones, or reports why it is not usable. An error: memory is exhausted. */
static tutti_status search_examine_port(struct search *search, struct ibv_context *context, const char *device,
    int number)
{
    struct ibv_port_attr attributes = { .state = IBV_PORT_NOP };
    struct device_port port = { .context = context, .number = (uint8_t)number };
    char text[GID_TEXT_BYTES];
    struct gid_table table;
    snprintf(port.name, sizeof port.name, "%.63s:%d", device, number);
    search_add_name(search, "%s", port.name);
    if (!device_is_wanted(search->wanted_names, device, number)) {
        search_report_port(search, "%s is not named in TUTTI_VERBS_DEVICE", port.name);
        return TUTTI_OK;
    }
    int error = verbs.ibv_query_port(context, port.number, (struct _compat_ibv_port_attr *)&attributes);
    const char *problem = error ? strerror(error) : port_find_problem(context, &attributes);
    if (problem) {
        search_report_refused(search, "%s is %s", port.name, problem);
        return TUTTI_OK;
    }
    port.is_ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
    port.lid = attributes.lid;
    port.mtu = attributes.active_mtu;
    port.message_bytes = attributes.max_msg_sz;
    TRY(gid_table_init(context, port.number, attributes.gid_tbl_len, search->sysfs, &table));
    bool usable = search->devices->count < PORTS_MOST && search_choose_gid(search, &port, &table);
    gid_table_finish(&table);
    if (!usable) return TUTTI_OK;
    search->devices->ports[search->devices->count++] = port;
    search_report_port(search, "%s is used with %s (GID %d, MTU %d)", port.name, gid_print(&port.gid, text),
        port.gid.index, 128 << port.mtu);
    return TUTTI_OK;
}

/* ---- all devices ---- */
/* Opens a device and examines its ports. A device without usable ports is closed. */
static tutti_status search_examine_device(struct search *search, struct ibv_device *device)
{
    struct devices *devices = search->devices;
    struct ibv_device_attr attributes;
    const char *name = verbs.ibv_get_device_name(device);
    errno = 0;
    struct ibv_context *context = devices->opened_count < DEVICES_MOST ? verbs.ibv_open_device(device) : NULL;
    int error = context ? verbs.ibv_query_device(context, &attributes) : errno;
    if (!context || error) {
        search_add_name(search, "%s", name);
        if (device_is_wanted(search->wanted_names, name, 0))
            search_report_refused(search, "%s cannot be opened: %s%s", name, strerror(error),
                error == EACCES || error == EPERM ? " (/dev/infiniband must be readable and writable)" : "");
        if (context) verbs.ibv_close_device(context);
        return TUTTI_OK;
    }
    int count_before = devices->count;
    tutti_status status = TUTTI_OK;
    for (int port = 1; port <= attributes.phys_port_cnt && status == TUTTI_OK; port++)
        status = search_examine_port(search, context, name, port);
    if (devices->count > count_before) devices->opened[devices->opened_count++] = context;
    else verbs.ibv_close_device(context);
    return status;
}
/* Returns UNSUPPORTED, with the text that this host has no RDMA device, and the remedy. */
static tutti_status search_fail_empty(const struct search *search)
{
    char line[8];
    if (sysfs_read_line(line, sizeof line, "%s/class/infiniband_verbs/abi_version", search->sysfs))
        return status_fail(TUTTI_UNSUPPORTED,
            "no RDMA device that libibverbs can use: the kernel supports them, so check the drivers of libibverbs "
            "(apt-get install ibverbs-providers), the devices (ibv_devices, rdma link), and in a container "
            "/dev/infiniband (docker run --device=/dev/infiniband)");
    return status_fail(TUTTI_UNSUPPORTED,
        "no RDMA device on this host: the kernel has none, or its module ib_uverbs "
        "is not loaded (modprobe ib_uverbs; rdma link lists the devices)");
}
/* Examines all RDMA devices of this host. */
static tutti_status search_examine_all(struct search *search)
{
    int count = 0;
    struct ibv_device **list = verbs.ibv_get_device_list(&count);
    tutti_status status = list && count > 0 ? TUTTI_OK : search_fail_empty(search);
    for (int i = 0; i < count && status == TUTTI_OK; i++) status = search_examine_device(search, list[i]);
    if (list) verbs.ibv_free_device_list(list);
    return status;
}
/* Returns the state of a search that has examined no device, and adds usable ports to `devices`. */
static struct search search_init(const struct device_environment *environment, struct devices *devices)
{
    return (struct search){ .environment = environment,
        .sysfs = environment->sysfs ? environment->sysfs : "/sys",
        .wanted_names = settings_get()->verbs_device,
        .devices = devices };
}
/* Fails unless every port that TUTTI_VERBS_DEVICE names is usable; if it names none, one port must be usable. */
static tutti_status search_check_result(const struct search *search)
{
    TRY(search_check_names(search));
    if (search->devices->count && !(*search->wanted_names && search->refused_count)) return TUTTI_OK;
    bool asked = *search->wanted_names || settings_get()->verbs_gid_index >= 0;
    return status_fail(asked ? TUTTI_INVALID_ARGUMENT : TUTTI_UNSUPPORTED,
        "no RDMA port of this host is usable%s: %s%s", *search->wanted_names ? " with this TUTTI_VERBS_DEVICE" : "",
        search->report, search->is_elsewhere ? "; name in TUTTI_VERBS_DEVICE those that lead to the other hosts" : "");
}
/* Searches for usable ports, and writes them to *out. `report` (NULL: none) gets the result of each port, also after an
   error. */
static tutti_status search_run(const struct device_environment *environment, struct devices **out,
    char report[REPORT_BYTES])
{
    struct devices *devices = memory_alloc_zeroed(1, sizeof *devices);
    if (!devices) return status_fail(TUTTI_NO_MEMORY, "no memory for the list of RDMA devices");
    struct search search = search_init(environment, devices);
    if (environment->interface) search.interface = gid_interface_read(environment->interface);
    tutti_status status = search_examine_all(&search);
    if (status == TUTTI_OK) status = search_check_result(&search);
    if (report) memcpy(report, search.report, REPORT_BYTES);
    if (status == TUTTI_OK) *out = devices;
    else devices_destroy(devices);
    return status;
}
tutti_status devices_create(const struct device_environment *environment, struct devices **out)
{
    return search_run(environment, out, NULL);
}
void devices_destroy(struct devices *devices)
{
    for (int i = 0; devices && i < devices->opened_count; i++) verbs.ibv_close_device(devices->opened[i]);
    free(devices);
}
tutti_status devices_describe(const struct device_environment *environment, char *out, size_t bytes)
{
    char report[REPORT_BYTES];
    struct devices *devices;
    TRY(search_run(environment, &devices, report));
    devices_destroy(devices);
    snprintf(out, bytes, "%s", report);
    return TUTTI_OK;
}
