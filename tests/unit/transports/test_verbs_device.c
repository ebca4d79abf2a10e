/* Which ports are usable, and by which address. The devices are fake: this test has a table of them, functions in place
   of the library's, and a folder in place of /sys. */
#include "backend/base/settings.h"
#include "backend/base/status.h"
#include "backend/transports/verbs/device/device.h"
#include "tests/support/unit.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

/* ---- fake devices ---- */
/* NONE and LO are indices of interfaces: of none, and of lo, which every machine has. */
enum { DEVICES = 3, PORTS = 2, GIDS = 4, NONE = 0, LO = 1 };
struct made_gid { const char *address; enum ibv_gid_type kind; uint32_t interface; };
struct made_port {
    enum ibv_port_state state;
    uint8_t layer;
    uint16_t lid;
    enum ibv_mtu mtu;
    struct made_gid gids[GIDS];
};
static struct made_device {
    struct ibv_device device;
    struct ibv_context context;
    int ports, open_error, opened;
    struct made_port port[PORTS];
} made[DEVICES];
static struct ibv_device *list[DEVICES + 1];
/* The number of devices that get_list returns, and of lists that are not freed. */
static int devices, lists;
/* The folder in place of /sys. */
static char root[64];

static struct made_device *made_of(const struct ibv_context *context) { return context->cmd_fd + made; }
static struct ibv_device **get_list(int *count)
{
    lists++;
    for (int i = 0; i < DEVICES; i++) list[i] = i < devices ? &made[i].device : NULL;
    *count = devices;
    return list;
}
static void free_list(struct ibv_device **given) { lists -= given == list; }
static const char *name_of(struct ibv_device *device) { return device->name; }
static struct ibv_context *open_device(struct ibv_device *device)
{
    struct made_device *m = (struct made_device *)(void *)device;
    errno = m->open_error;
    if (m->open_error) return NULL;
    m->opened++;
    m->context = (struct ibv_context){ .device = device, .cmd_fd = (int)(m - made) };
    return &m->context;
}
static int close_device(struct ibv_context *context)
{
    made_of(context)->opened--;
    return 0;
}
static int query_device(struct ibv_context *context, struct ibv_device_attr *out)
{
    *out = (struct ibv_device_attr){ .phys_port_cnt = (uint8_t)made_of(context)->ports };
    return 0;
}
static int query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *out)
{
    const struct made_port *p = &made_of(context)->port[port - 1];
    struct ibv_port_attr *about = (struct ibv_port_attr *)(void *)out;
    *about = (struct ibv_port_attr){ .state = p->state,
        .active_mtu = p->mtu,
        .max_mtu = IBV_MTU_4096,
        .max_msg_sz = 8 << 20,
        .lid = p->lid,
        .link_layer = p->layer,
        .gid_tbl_len = GIDS };
    return 0;
}
static union ibv_gid raw_of(const char *address)
{
    union ibv_gid g = { .raw = { 0 } };
    if (!address) return g;
    if (strchr(address, ':')) inet_pton(AF_INET6, address, g.raw);
    else {
        g.raw[10] = g.raw[11] = 0xff;
        inet_pton(AF_INET, address, g.raw + 12);
    }
    return g;
}
static int query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *out)
{
    *out = raw_of(made_of(context)->port[port - 1].gids[index].address);
    return 0;
}
static ssize_t query_table(struct ibv_context *context, struct ibv_gid_entry *out, size_t most, uint32_t flags,
    size_t bytes)
{
    size_t count = 0;
    assert_true(flags == 0 && bytes == sizeof *out);
    for (int port = 1; port <= made_of(context)->ports; port++)
        for (int i = 0; i < GIDS; i++) {
            const struct made_gid *g = &made_of(context)->port[port - 1].gids[i];
            if (!g->address) continue;
            assert_true(count < most);
            out[count++] =
                (struct ibv_gid_entry){ raw_of(g->address), (uint32_t)i, (uint32_t)port, g->kind, g->interface };
        }
    return (ssize_t)count;
}
static struct made_port port_of_ethernet(void)
{
    return (struct made_port){ IBV_PORT_ACTIVE, IBV_LINK_LAYER_ETHERNET, 0, IBV_MTU_1024,
        { { "fe80::1", IBV_GID_TYPE_ROCE_V1, LO }, { "fe80::1", IBV_GID_TYPE_ROCE_V2, LO },
            { "10.0.0.1", IBV_GID_TYPE_ROCE_V1, LO }, { "10.0.0.1", IBV_GID_TYPE_ROCE_V2, LO } } };
}
static struct made_port port_of_infiniband(void)
{
    return (struct made_port){ IBV_PORT_ACTIVE, IBV_LINK_LAYER_INFINIBAND, 17, IBV_MTU_4096,
        { { "fe80::2:c903:1:2", IBV_GID_TYPE_IB, NONE } } };
}
/* Makes two devices: one of Ethernet with one port, and one of InfiniBand with two, the second of which is down.
   Removes the settings. */
static int set_up(void **state)
{
    (void)state;
    static const char *const settings[] = { "TUTTI_VERBS_DEVICE", "TUTTI_VERBS_GID_INDEX" };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) unsetenv(settings[i]);
    settings_reload();
    memset(made, 0, sizeof made);
    for (int i = 0; i < DEVICES; i++) {
        made[i].device = (struct ibv_device){ .node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB };
        snprintf(made[i].device.name, sizeof made[i].device.name, "rdma%d", i);
        made[i].ports = 1;
        made[i].port[0] = made[i].port[1] = port_of_ethernet();
    }
    devices = 2;
    made[1].ports = 2;
    made[1].port[0] = made[1].port[1] = port_of_infiniband();
    made[1].port[1].state = IBV_PORT_DOWN;
    verbs = (struct verbs_calls){ .ibv_get_device_list = get_list,
        .ibv_free_device_list = free_list,
        .ibv_get_device_name = name_of,
        .ibv_open_device = open_device,
        .ibv_close_device = close_device,
        .ibv_query_device = query_device,
        .ibv_query_port = query_port,
        .ibv_query_gid = query_gid,
        ._ibv_query_gid_table = query_table };
    return 0;
}
/* The teardown of a test fails if a device is open or a list is not freed. */
static int nothing_is_left(void **state)
{
    (void)state;
    int left = lists;
    for (int i = 0; i < DEVICES; i++) left += made[i].opened;
    return left;
}
static void set_variable(const char *variable, const char *value)
{
    setenv(variable, value, 1);
    settings_reload();
}
/* Writes a line to a file below the folder for /sys, and creates the folders on the way. */
static void write_file(const char *line, const char *path)
{
    char whole[256];
    snprintf(whole, sizeof whole, "%s/%s", root, path);
    for (char *slash = strchr(whole + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(whole, 0700);
        *slash = '/';
    }
    FILE *file = fopen(whole, "w");
    assert_non_null(file);
    fprintf(file, "%s\n", line);
    fclose(file);
}
static struct devices *devices_found(const char *interface, int family)
{
    const struct device_environment callbacks = { interface, family, root };
    struct devices *d = NULL;
    assert_int_equal(devices_create(&callbacks, &d), TUTTI_OK);
    return d;
}
/* Checks that devices_create fails with this status, and that its text has all of these words, up to NULL. */
static void expect_refused(tutti_status status, const char *interface, const char *const *words)
{
    const struct device_environment callbacks = { interface, 0, root };
    struct devices *d = NULL;
    assert_int_equal(devices_create(&callbacks, &d), status);
    assert_null(d);
    for (; *words; words++)
        if (!strstr(status_detail(), *words)) fail_msg("\"%s\" is not in: %s", *words, status_detail());
}
#define REFUSED(status, interface, ...) expect_refused(status, interface, (const char *const[]){ __VA_ARGS__, NULL })

/* ---- which ports ---- */
static void test_all_active_ports_are_used(void **state)
{
    (void)state;
    struct devices *d = devices_found("lo", AF_INET);
    assert_int_equal(d->count, 2);
    assert_string_equal(d->ports[0].name, "rdma0:1");
    assert_true(d->ports[0].is_ethernet && d->ports[0].gid.index == 3 && d->ports[0].mtu == IBV_MTU_1024);
    assert_int_equal(d->ports[0].message_bytes, 8 << 20);
    assert_string_equal(d->ports[1].name, "rdma1:1");
    assert_true(!d->ports[1].is_ethernet && d->ports[1].lid == 17 && d->ports[1].gid.index == 0);
    assert_int_equal(d->opened_count, 2);
    devices_destroy(d);
}
static void test_a_device_of_two_ports_is_opened_once(void **state)
{
    (void)state;
    made[1].port[1].state = IBV_PORT_ACTIVE;
    struct devices *d = devices_found(NULL, 0);
    assert_int_equal(d->count, 3);
    assert_int_equal(d->opened_count, 2);
    assert_ptr_equal(d->ports[1].context, d->ports[2].context);
    assert_int_equal(d->ports[2].number, 2);
    devices_destroy(d);
}
static void test_only_named_ports_are_used(void **state)
{
    (void)state;
    made[1].port[1].state = IBV_PORT_ACTIVE;
    set_variable("TUTTI_VERBS_DEVICE", "rdma1:2");
    struct devices *d = devices_found(NULL, 0);
    assert_int_equal(d->count, 1);
    assert_string_equal(d->ports[0].name, "rdma1:2");
    devices_destroy(d);
    set_variable("TUTTI_VERBS_DEVICE", "rdma1,rdma0:1");
    d = devices_found(NULL, 0);
    assert_int_equal(d->count, 3);
    devices_destroy(d);
}
static void test_a_named_port_is_used_on_any_interface(void **state)
{
    (void)state;
    set_variable("TUTTI_VERBS_DEVICE", "rdma0");
    struct devices *d = devices_found("elsewhere", AF_INET);
    assert_int_equal(d->ports[0].gid.index, 3);
    devices_destroy(d);
}

/* ---- wrong setups and settings ---- */
static void test_no_device_is_an_error(void **state)
{
    (void)state;
    devices = 0;
    REFUSED(TUTTI_UNSUPPORTED, NULL, "no RDMA device on this host", "modprobe ib_uverbs");
}
static void test_a_missing_driver_is_told_apart_from_a_missing_device(void **state)
{
    (void)state;
    devices = 0;
    write_file("6", "class/infiniband_verbs/abi_version");
    REFUSED(TUTTI_UNSUPPORTED, NULL, "apt-get install ibverbs-providers", "--device=/dev/infiniband");
    char path[128];
    snprintf(path, sizeof path, "%s/class/infiniband_verbs/abi_version", root);
    assert_int_equal(unlink(path), 0);
}
static void test_no_active_port_is_an_error_that_lists_the_ports(void **state)
{
    (void)state;
    made[0].port[0].state = IBV_PORT_DOWN;
    made[1].port[0].state = IBV_PORT_INIT;
    REFUSED(TUTTI_UNSUPPORTED, NULL, "rdma0:1 is down", "rdma1:1 is starting (no subnet manager yet?)",
        "rdma1:2 is down");
}
static void test_an_unknown_name_is_an_error_that_lists_the_ports(void **state)
{
    (void)state;
    static const char *const wrong[] = { "rdma", "rdma00", "rdma0:2", "rdma0:1x", "mlx5_0" };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        set_variable("TUTTI_VERBS_DEVICE", wrong[i]);
        REFUSED(TUTTI_INVALID_ARGUMENT, NULL, "TUTTI_VERBS_DEVICE names", wrong[i], "rdma0:1, rdma1:1, rdma1:2");
    }
    set_variable("TUTTI_VERBS_DEVICE", "rdma0:1,mlx5_0:1");
    REFUSED(TUTTI_INVALID_ARGUMENT, NULL, "names mlx5_0:1, which");
}
static void test_a_named_port_that_is_down_is_an_error(void **state)
{
    (void)state;
    set_variable("TUTTI_VERBS_DEVICE", "rdma0,rdma1");
    REFUSED(TUTTI_INVALID_ARGUMENT, NULL, "with this TUTTI_VERBS_DEVICE", "rdma1:2 is down");
}
static void test_no_address_on_the_interface_is_an_error_that_lists_the_addresses(void **state)
{
    (void)state;
    devices = 1;
    REFUSED(TUTTI_UNSUPPORTED, "eth7", "rdma0:1 has no RoCE v2 address on network interface eth7",
        "1 RoCE v2 fe80::1 on lo", "2 RoCE v1 10.0.0.1 on lo", "name in TUTTI_VERBS_DEVICE those that lead");
}
static void test_no_address_of_roce_v2_is_an_error(void **state)
{
    (void)state;
    devices = 1;
    for (int i = 0; i < GIDS; i++) made[0].port[0].gids[i].kind = IBV_GID_TYPE_ROCE_V1;
    REFUSED(TUTTI_UNSUPPORTED, "lo", "no RoCE v2 address", "3 RoCE v1 10.0.0.1 on lo");
    memset(made[0].port[0].gids, 0, sizeof made[0].port[0].gids);
    REFUSED(TUTTI_UNSUPPORTED, NULL, "no RoCE v2 address (it has none)");
}
static void test_a_missing_gid_is_an_error(void **state)
{
    (void)state;
    devices = 1;
    set_variable("TUTTI_VERBS_GID_INDEX", "9");
    REFUSED(TUTTI_INVALID_ARGUMENT, NULL, "has no GID 9, which TUTTI_VERBS_GID_INDEX asks for", "3 RoCE v2 10.0.0.1");
}
static void test_a_device_that_cannot_be_opened_is_named(void **state)
{
    (void)state;
    devices = 1;
    made[0].open_error = EACCES;
    REFUSED(TUTTI_UNSUPPORTED, NULL, "rdma0 cannot be opened", "/dev/infiniband must be readable");
    devices = 2;
    /* The other device is usable. */
    struct devices *d = devices_found(NULL, 0);
    assert_int_equal(d->count, 1);
    devices_destroy(d);
}
static void test_a_device_without_datagrams_is_not_used(void **state)
{
    (void)state;
    devices = 1;
    made[0].device.transport_type = IBV_TRANSPORT_IWARP;
    REFUSED(TUTTI_UNSUPPORTED, NULL, "rdma0:1 is of a kind without datagrams");
}

/* ---- by which address ---- */
static void test_family_and_interface_choose_the_address(void **state)
{
    (void)state;
    struct gid rows[] = {
        { raw_of("fe80::1"), 0, IBV_GID_TYPE_ROCE_V2, "eth0" },
        { raw_of("10.0.0.1"), 1, IBV_GID_TYPE_ROCE_V1, "eth0" },
        { raw_of("10.0.0.1"), 2, IBV_GID_TYPE_ROCE_V2, "eth0" },
        { raw_of("fd00::1"), 3, IBV_GID_TYPE_ROCE_V2, "eth0" },
        { raw_of("10.1.0.1"), 4, IBV_GID_TYPE_ROCE_V2, "eth0.7" },
        { raw_of("fe80::2"), 5, IBV_GID_TYPE_ROCE_V2, "eth1" },
    };
    const struct gid_table table = { sizeof rows / sizeof *rows, rows };
    const struct gid_interface first = { .name = "eth0" }, lane = { .name = "eth0.7" }, second = { .name = "eth1" };
    const struct gid_interface none = { .name = "eth2" };
    assert_int_equal(gid_table_choose(&table, &first, AF_INET)->index, 2);
    assert_int_equal(gid_table_choose(&table, &first, AF_INET6)->index, 3);
    assert_int_equal(gid_table_choose(&table, &first, 0)->index, 2);
    /* The family is only a preference, and a link-local address serves if the interface has no other. */
    assert_int_equal(gid_table_choose(&table, &lane, AF_INET6)->index, 4);
    assert_int_equal(gid_table_choose(&table, &second, AF_INET)->index, 5);
    assert_int_equal(gid_table_choose(&table, NULL, AF_INET6)->index, 3);
    assert_null(gid_table_choose(&table, &none, AF_INET));
}
/* In a container the device may know the interface by another name, or not at all. A GID with an address of the
   interface is chosen even so. */
static void test_a_gid_with_an_address_of_the_interface_is_chosen(void **state)
{
    (void)state;
    struct gid rows[] = {
        { raw_of("10.9.0.1"), 0, IBV_GID_TYPE_ROCE_V2, "lo" },
        { raw_of("127.0.0.1"), 1, IBV_GID_TYPE_ROCE_V1, "" },
        { raw_of("127.0.0.1"), 2, IBV_GID_TYPE_ROCE_V2, "" },
    };
    const struct gid_table table = { sizeof rows / sizeof *rows, rows };
    const struct gid_interface loopback = gid_interface_read("lo"), nothing = gid_interface_read("nothing");
    assert_true(loopback.count > 0 && nothing.count == 0);
    assert_int_equal(gid_table_choose(&table, &loopback, AF_INET)->index, 2);
    assert_null(gid_table_choose(&table, &nothing, AF_INET));
}
static void test_gids_are_read_from_sysfs_with_an_older_library(void **state)
{
    (void)state;
    verbs._ibv_query_gid_table = NULL;
    devices = 1;
    write_file("IB/RoCE v1", "class/infiniband/rdma0/ports/1/gid_attrs/types/0");
    write_file("RoCE v2", "class/infiniband/rdma0/ports/1/gid_attrs/types/1");
    write_file("IB/RoCE v1", "class/infiniband/rdma0/ports/1/gid_attrs/types/2");
    write_file("RoCE v2", "class/infiniband/rdma0/ports/1/gid_attrs/types/3");
    write_file("eth5", "class/infiniband/rdma0/ports/1/gid_attrs/ndevs/1");
    write_file("eth6", "class/infiniband/rdma0/ports/1/gid_attrs/ndevs/3");
    struct devices *d = devices_found("eth6", AF_INET);
    assert_int_equal(d->ports[0].gid.index, 3);
    assert_string_equal(d->ports[0].gid.interface, "eth6");
    devices_destroy(d);
    d = devices_found("eth5", AF_INET);
    assert_int_equal(d->ports[0].gid.index, 1);
    devices_destroy(d);
}
static void test_a_setting_chooses_the_gid(void **state)
{
    (void)state;
    devices = 1;
    set_variable("TUTTI_VERBS_GID_INDEX", "1");
    struct devices *d = devices_found("lo", AF_INET);
    assert_int_equal(d->ports[0].gid.index, 1);
    devices_destroy(d);
}

/* ---- distance and description ---- */
static void test_near_devices_come_first(void **state)
{
    (void)state;
    int order[PORTS_MOST];
    devices = 3;
    write_file("0-1", "devices/system/node/node0/cpulist");
    write_file("2,3", "devices/system/node/node1/cpulist");
    write_file("10 21", "devices/system/node/node0/distance");
    write_file("21 10", "devices/system/node/node1/distance");
    write_file("0", "class/infiniband/rdma0/device/numa_node");
    write_file("0-1", "class/infiniband/rdma0/device/local_cpulist");
    write_file("2-3", "class/infiniband/rdma2/device/local_cpulist");
    /* sysfs has no file about rdma1, so it is last. */
    write_file("1", "class/infiniband/rdma2/device/numa_node");
    struct devices *d = devices_found(NULL, 0);
    assert_int_equal(d->count, 3);
    devices_order_by_distance(d, 3, root, order);
    assert_true(order[0] == 2 && order[1] == 0 && order[2] == 1);
    devices_order_by_distance(d, 0, root, order);
    assert_true(order[0] == 0 && order[1] == 2 && order[2] == 1);
    /* Without sysfs all devices count as equally near. */
    devices_order_by_distance(d, -1, "/nowhere", order);
    assert_true(order[0] == 0 && order[1] == 1 && order[2] == 2);
    devices_destroy(d);
}
static void test_description_has_every_port(void **state)
{
    (void)state;
    char text[700];
    const struct device_environment callbacks = { NULL, 0, root };
    assert_int_equal(devices_describe(&callbacks, text, sizeof text), TUTTI_OK);
    assert_string_equal(text,
        "rdma0:1 is used with 10.0.0.1 on lo (GID 3, MTU 1024); rdma1:1 is used with fe80::2:c903:1:2 "
        "(GID 0, MTU 4096); rdma1:2 is down");
}
static void test_long_descriptions_are_cut(void **state)
{
    (void)state;
    char text[700];
    const struct device_environment callbacks = { NULL, 0, root };
    for (int i = 0; i < DEVICES; i++) {
        memset(made[i].device.name, 'a' + i, IBV_SYSFS_NAME_MAX - 1);
        made[i].port[0].layer = IBV_LINK_LAYER_ETHERNET;
        for (int g = 0; g < GIDS; g++)
            made[i].port[0].gids[g] =
                (struct made_gid){ "fd00:1111:2222:3333:4444:5555:6666:7777", IBV_GID_TYPE_ROCE_V1, LO };
    }
    devices = DEVICES;
    assert_int_equal(devices_describe(&callbacks, text, sizeof text), TUTTI_UNSUPPORTED);
    made[2].port[0] = port_of_ethernet();
    assert_int_equal(devices_describe(&callbacks, text, sizeof text), TUTTI_OK);
    assert_true(strlen(text) < sizeof text);
}
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, nothing_is_left)
unit_function test_verbs_device;
int test_verbs_device(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_all_active_ports_are_used),
        TEST(test_a_device_of_two_ports_is_opened_once),
        TEST(test_only_named_ports_are_used),
        TEST(test_a_named_port_is_used_on_any_interface),
        TEST(test_no_device_is_an_error),
        TEST(test_a_missing_driver_is_told_apart_from_a_missing_device),
        TEST(test_no_active_port_is_an_error_that_lists_the_ports),
        TEST(test_an_unknown_name_is_an_error_that_lists_the_ports),
        TEST(test_a_named_port_that_is_down_is_an_error),
        TEST(test_no_address_on_the_interface_is_an_error_that_lists_the_addresses),
        TEST(test_no_address_of_roce_v2_is_an_error),
        TEST(test_a_missing_gid_is_an_error),
        TEST(test_a_device_that_cannot_be_opened_is_named),
        TEST(test_a_device_without_datagrams_is_not_used),
        TEST(test_family_and_interface_choose_the_address),
        TEST(test_a_gid_with_an_address_of_the_interface_is_chosen),
        TEST(test_gids_are_read_from_sysfs_with_an_older_library),
        TEST(test_a_setting_chooses_the_gid),
        TEST(test_near_devices_come_first),
        TEST(test_description_has_every_port),
        TEST(test_long_descriptions_are_cut),
    };
    const char *folder = getenv("TMPDIR");
    snprintf(root, sizeof root, "%.40s/verbs-XXXXXX", folder ? folder : P_tmpdir);
    if (!mkdtemp(root)) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char command[96];
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command) == 0 ? failed : 1;
}
