/* The library reports kinds and network interfaces of the entries since rdma-core 32; for an older one the kernel's
   files have the same information. */
#include "backend/transports/verbs/device/gid.h"
#include "backend/base/memory.h"
#include "backend/transports/verbs/device/sysfs.h"
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ---- */
/* Returns whether an entry of a GID table is in use. */
static bool gid_is_set(const union ibv_gid *g) { return g->global.interface_id != 0; }
/* Appends an entry to the table if it is set. */
static void gid_table_add_entry(struct gid_table *table, const struct gid *entry)
{
    if (gid_is_set(&entry->raw)) table->entries[table->count++] = *entry;
}
/* Reads the entries of a port, at most `length`, by the library, which returns those of all ports at once. false: the
   library cannot report them. */
static bool gid_table_read_library(struct ibv_context *context, uint8_t port, int length, struct gid_table *out)
{
    struct ibv_device_attr device;
    if (!verbs._ibv_query_gid_table || verbs.ibv_query_device(context, &device) != 0) return false;
    size_t capacity = (size_t)length * device.phys_port_cnt;
    struct ibv_gid_entry *entries = memory_alloc_zeroed(capacity ? capacity : 1, sizeof *entries);
    ssize_t count = entries ? verbs._ibv_query_gid_table(context, entries, capacity, 0, sizeof *entries) : -1;
    for (ssize_t i = 0; i < count; i++) {
        const struct ibv_gid_entry *entry = &entries[i];
        if (entry->port_num != port || out->count == length) continue;
        struct gid gid = {
            .raw = entry->gid, .index = (int)entry->gid_index, .kind = (enum ibv_gid_type)entry->gid_type
        };
        if (!entry->ndev_ifindex || !if_indextoname(entry->ndev_ifindex, gid.interface)) gid.interface[0] = 0;
        gid_table_add_entry(out, &gid);
    }
    free(entries);
    return count >= 0;
}
/* Reads the `length` entries of a port, with kind and interface from the kernel's files, for libraries without
   ibv_query_gid_table. */
static void gid_table_read_sysfs(struct ibv_context *context, uint8_t port, int length, const char *sysfs,
    struct gid_table *out)
{
    const char *device = verbs.ibv_get_device_name(context->device);
    char line[64];
    for (int i = 0; i < length; i++) {
        struct gid gid = { .index = i, .kind = IBV_GID_TYPE_IB };
        if (verbs.ibv_query_gid(context, port, i, &gid.raw) != 0 || !gid_is_set(&gid.raw)) continue;
        const char *folder = "class/infiniband";
        if (sysfs_read_line(line, sizeof line, "%s/%s/%s/ports/%d/gid_attrs/types/%d", sysfs, folder, device, port,
                i)) {
            if (strcmp(line, "RoCE v2") == 0) gid.kind = IBV_GID_TYPE_ROCE_V2;
            else if (strstr(line, "RoCE v1")) gid.kind = IBV_GID_TYPE_ROCE_V1;
        }
        sysfs_read_line(gid.interface, sizeof gid.interface, "%s/%s/%s/ports/%d/gid_attrs/ndevs/%d", sysfs, folder,
            device, port, i);
        gid_table_add_entry(out, &gid);
    }
}
tutti_status gid_table_init(struct ibv_context *context, uint8_t port, int length, const char *sysfs,
    struct gid_table *out)
{
    struct gid_table table = { 0, memory_alloc_zeroed((size_t)length + 1, sizeof *table.entries) };
    if (!table.entries) return status_fail(TUTTI_NO_MEMORY, "no memory for the %d addresses of a port", length);
    if (!gid_table_read_library(context, port, length, &table)) {
        table.count = 0;
        gid_table_read_sysfs(context, port, length, sysfs, &table);
    }
    *out = table;
    return TUTTI_OK;
}
void gid_table_finish(struct gid_table *table)
{
    free(table->entries);
    *table = (struct gid_table){ 0 };
}

/* ---- choosing ---- */
/* Returns AF_INET for an IPv4 address that is mapped to IPv6, otherwise AF_INET6. */
static int gid_address_family(const struct gid *g)
{
    static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };
    return memcmp(g->raw.raw, mapped, sizeof mapped) == 0 ? AF_INET : AF_INET6;
}
/* Returns whether the address is valid on one network only: 169.254.0.0/16 or fe80::/10. */
static bool gid_is_link_local(const struct gid *g)
{
    const unsigned char *raw = g->raw.raw;
    if (gid_address_family(g) == AF_INET) return raw[12] == 169 && raw[13] == 254;
    return raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80;
}
/* Adds an address of a network interface as a GID; IPv4 addresses are mapped to IPv6. Other families, NULL, and
   addresses beyond GID_ADDRESSES are ignored. */
static void interface_add_address(struct gid_interface *out, const struct sockaddr *address)
{
    static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };
    const struct sockaddr_in *four = (const void *)address;
    const struct sockaddr_in6 *six = (const void *)address;
    union ibv_gid *g = &out->address[out->count];
    if (!address || out->count == GID_ADDRESSES) return;
    if (address->sa_family == AF_INET) {
        memcpy(g->raw, mapped, sizeof mapped);
        memcpy(g->raw + 12, &four->sin_addr, 4);
        out->count++;
    } else if (address->sa_family == AF_INET6) memcpy(out->address[out->count++].raw, &six->sin6_addr, 16);
}
struct gid_interface gid_interface_read(const char *name)
{
    struct gid_interface out = { .name = name };
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0) return out;
    for (const struct ifaddrs *a = all; a; a = a->ifa_next)
        if (strcmp(a->ifa_name, name) == 0) interface_add_address(&out, a->ifa_addr);
    freeifaddrs(all);
    return out;
}
/* Returns whether the GID is an address of the network interface. */
static bool interface_has_address(const struct gid_interface *interface, const struct gid *g)
{
    for (int i = 0; i < interface->count; i++)
        if (memcmp(interface->address[i].raw, g->raw.raw, sizeof g->raw.raw) == 0) return true;
    return false;
}
enum { NEVER = 8 };
/* Returns the rating of a GID for gid_table_choose: 0 is best, and NEVER means that the GID is unusable. */
static int gid_rate_preference(const struct gid *g, const struct gid_interface *interface, int family)
{
    bool addressed = !interface || interface_has_address(interface, g);
    if (g->kind != IBV_GID_TYPE_ROCE_V2) return NEVER;
    if (!addressed && strcmp(g->interface, interface->name) != 0) return NEVER;
    return 4 * !addressed + 2 * gid_is_link_local(g) + (family && gid_address_family(g) != family);
}
const struct gid *gid_table_choose(const struct gid_table *table, const struct gid_interface *interface, int family)
{
    const struct gid *best = NULL;
    int least = NEVER;
    for (int i = 0; i < table->count; i++) {
        int mine = gid_rate_preference(&table->entries[i], interface, family);
        if (mine < least) {
            least = mine;
            best = &table->entries[i];
        }
    }
    return best;
}
const struct gid *gid_table_find_index(const struct gid_table *table, int index)
{
    for (int i = 0; i < table->count; i++)
        if (table->entries[i].index == index) return &table->entries[i];
    return NULL;
}

/* ---- printing ---- */
const char *gid_print(const struct gid *g, char out[GID_TEXT_BYTES])
{
    char address[INET6_ADDRSTRLEN];
    bool four = gid_address_family(g) == AF_INET;
    inet_ntop(four ? AF_INET : AF_INET6, g->raw.raw + (four ? 12 : 0), address, sizeof address);
    snprintf(out, GID_TEXT_BYTES, "%s%s%s", address, g->interface[0] ? " on " : "", g->interface);
    return out;
}
const char *gid_table_print(const struct gid_table *table, char out[GIDS_TEXT_BYTES])
{
    static const char *const kinds[] = { "InfiniBand", "RoCE v1", "RoCE v2" };
    char text[GID_TEXT_BYTES];
    size_t used = 0;
    snprintf(out, GIDS_TEXT_BYTES, "none");
    for (int i = 0; i < table->count && used + 1 < GIDS_TEXT_BYTES; i++) {
        const struct gid *g = &table->entries[i];
        int length = snprintf(out + used, GIDS_TEXT_BYTES - used, "%s%d %s %s", used ? ", " : "", g->index,
            (unsigned)g->kind < 3 ? kinds[g->kind] : "of unknown kind", gid_print(g, text));
        used += (size_t)length;
    }
    return out;
}
