/* The system's interfaces are read into a table, and the choice depends only on the table. */
#include "backend/join/interface.h"
#include "backend/base/descriptor.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static_assert((int)INTERFACE_NAME_BYTES == (int)IF_NAMESIZE, "room for a name");

/* ---- addresses ---- */
/* Converts an address of the kernel, without its port. The family of the result is 0 for NULL, or if the address is
   neither IPv4 nor IPv6. */
static struct sock_address sock_address_of_sockaddr(const struct sockaddr *address)
{
    struct sock_address found = { .family = 0 };
    const struct sockaddr_in *four = (const void *)address;
    const struct sockaddr_in6 *six = (const void *)address;
    if (!address) return found;
    if (address->sa_family == AF_INET) memcpy(found.address, &four->sin_addr, sizeof four->sin_addr);
    else if (address->sa_family == AF_INET6) memcpy(found.address, &six->sin6_addr, sizeof six->sin6_addr);
    else return found;
    found.family = address->sa_family;
    if (address->sa_family == AF_INET6) found.scope = six->sin6_scope_id;
    return found;
}
/* Returns true if two addresses are equal, apart from the ports. */
static bool sock_address_equal(const struct sock_address *a, const struct sock_address *b)
{
    return a->family == b->family && memcmp(a->address, b->address, sizeof a->address) == 0;
}
bool sock_address_is_loopback(const struct sock_address *c)
{
    static const unsigned char one[16] = { [15] = 1 };
    return c->family == AF_INET ? c->address[0] == 127 : memcmp(c->address, one, sizeof one) == 0;
}
/* Returns true for a link-local address: 169.254.0.0/16 or fe80::/10. */
static bool sock_address_is_link_local(const struct sock_address *c)
{
    if (c->family == AF_INET) return c->address[0] == 169 && c->address[1] == 254;
    return c->address[0] == 0xfe && (c->address[1] & 0xc0) == 0x80;
}

/* ---- choosing ---- */
/* TUTTI_SOCKET_IFNAME: whether `names` are whole names, not prefixes, and whether they are excluded, not chosen. */
struct filter { bool exact, excludes; const char *names; };
static struct filter interface_filter_parse(const char *names)
{
    struct filter filter = { .excludes = names[0] == '^' };
    names += filter.excludes;
    filter.exact = names[0] == '=';
    filter.names = names + filter.exact;
    return filter;
}
/* Returns true if the interface has that name, or begins with it unless `exact` or a leading '=' demands the whole
   name. */
static bool interface_is_named(const struct interface *interface, bool exact, const char *name, size_t length)
{
    bool whole = exact || name[0] == '=';
    if (name[0] == '=') { name++; length--; }
    return length && strncmp(interface->name, name, length) == 0 && (!whole || strlen(interface->name) == length);
}
/* Returns the first interface that is up and matches a name, preferring addresses that are not link-local. */
static const struct interface *interface_first_named(const struct interface *table, int count, bool exact,
    const char *name, size_t length)
{
    const struct interface *link_local = NULL;
    for (int i = 0; i < count; i++) {
        if (!table[i].up || !interface_is_named(&table[i], exact, name, length)) continue;
        if (!sock_address_is_link_local(&table[i].contact)) return &table[i];
        if (!link_local) link_local = &table[i];
    }
    return link_local;
}
/* Returns true if any name of the filter matches the interface. */
static bool interface_is_excluded(const struct filter *filter, const struct interface *interface)
{
    for (const char *name = filter->names;; name++) {
        size_t length = strcspn(name, ",");
        if (interface_is_named(interface, filter->exact, name, length)) return true;
        if (!*(name += length)) return false;
    }
}
/* Returns the first interface that is up and not excluded, preferring addresses that are not link-local. */
static const struct interface *interface_first_not_excluded(const struct interface *table, int count,
    const struct filter *f)
{
    const struct interface *link_local = NULL;
    for (int i = 0; i < count; i++) {
        if (!table[i].up || sock_address_is_loopback(&table[i].contact) || interface_is_excluded(f, &table[i]))
            continue;
        if (!sock_address_is_link_local(&table[i].contact)) return &table[i];
        if (!link_local) link_local = &table[i];
    }
    return link_local;
}
const struct interface *interface_choose(const struct interface *table, int count, const char *names)
{
    struct filter filter = interface_filter_parse(names);
    if (filter.excludes || !*filter.names) return interface_first_not_excluded(table, count, &filter);
    for (const char *name = filter.names;; name++) {
        size_t length = strcspn(name, ",");
        const struct interface *found = interface_first_named(table, count, filter.exact, name, length);
        if (found || !*(name += length)) return found;
    }
}

const struct interface *interface_find_faster(const struct interface *table, int count, const struct interface *chosen)
{
    const struct interface *fastest = NULL;
    for (int i = 0; i < count; i++) {
        const struct sock_address *contact = &table[i].contact;
        if (!table[i].up || sock_address_is_loopback(contact) || sock_address_is_link_local(contact)) continue;
        if (!fastest || table[i].speed > fastest->speed) fastest = &table[i];
    }
    return fastest && chosen->speed > 0 && fastest->speed / 2 >= chosen->speed ? fastest : NULL;
}

/* ---- the system's table ---- */
static bool interface_has_device(const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "/sys/class/net/%s/device", name);
    return access(path, F_OK) == 0;
}
/* Returns the speed of an interface in Mbit/s, or 0 if the kernel does not know it. */
static int interface_read_speed(const char *name)
{
    char path[64];
    int speed = 0;
    snprintf(path, sizeof path, "/sys/class/net/%s/speed", name);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    if (fscanf(file, "%d", &speed) != 1 || speed < 0) speed = 0;
    fclose(file);
    return speed;
}
/* Lists the interfaces of this host with their addresses. The caller frees the table. */
static tutti_status interface_read_table(struct interface **out, int *count)
{
    struct ifaddrs *all, *a;
    int found = 0;
    if (getifaddrs(&all) != 0)
        return status_fail(TUTTI_SYSTEM, "the network interfaces cannot be listed: %s", strerror(errno));
    for (a = all; a; a = a->ifa_next) found++;
    struct interface *table = memory_alloc_zeroed((size_t)found + 1, sizeof *table);
    found = 0;
    for (a = all; a && table; a = a->ifa_next) {
        struct interface *i = &table[found];
        i->contact = sock_address_of_sockaddr(a->ifa_addr);
        /* IFF_RUNNING means that the interface is plugged in. */
        i->up = (a->ifa_flags & (IFF_UP | IFF_RUNNING)) == (IFF_UP | IFF_RUNNING);
        snprintf(i->name, sizeof i->name, "%s", a->ifa_name);
        found += i->contact.family != 0;
    }
    freeifaddrs(all);
    if (!table) return status_fail(TUTTI_NO_MEMORY, "no memory for the network interfaces");
    *out = table;
    *count = found;
    return TUTTI_OK;
}
/* Fails because TUTTI_SOCKET_IFNAME matches no interface, and lists those that exist. */
static tutti_status interface_fail_no_match(const struct interface *table, int count, const char *names)
{
    char all[STATUS_DETAIL_BYTES / 2] = "", address[INET6_ADDRSTRLEN];
    for (int i = 0; i < count; i++) {
        size_t used = strlen(all);
        inet_ntop(table[i].contact.family, table[i].contact.address, address, sizeof address);
        snprintf(all + used, sizeof all - used, "%s%s (%s%s)", i ? ", " : "", table[i].name, address,
            table[i].up ? "" : ", down");
    }
    return status_fail(TUTTI_INVALID_ARGUMENT,
        "TUTTI_SOCKET_IFNAME=%.100s: no such network interface is up and has an address; this host has %s", names,
        count ? all : "none");
}

/* ---- the route to the store ---- */
/* Returns the local address of the route to that address; its family is 0 without a route. A UDP socket gets the local
   address when it is connected, and no packet is sent. */
static struct sock_address addrinfo_find_source(const struct addrinfo *to)
{
    struct sockaddr_storage local;
    socklen_t bytes = sizeof local;
    struct sock_address found = { .family = 0 };
    int probe = descriptor_move_above_stderr(socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (probe < 0) return found;
    if (connect(probe, to->ai_addr, to->ai_addrlen) == 0 && getsockname(probe, (void *)&local, &bytes) == 0)
        found = sock_address_of_sockaddr((const void *)&local);
    close(probe);
    return found;
}
/* Returns the local address of the route to that host. The family is 0 if no route is known, or if it is this host. */
static struct sock_address host_find_route_source(const char *host)
{
    struct addrinfo want = { .ai_socktype = SOCK_DGRAM }, *all;
    struct sock_address found = { .family = 0 };
    int error = getaddrinfo(host, "1", &want, &all);
    if (error) {
        LOG(WARN, "the host of the store, %s, was not found (%s), so the network interface that leads to it is unknown",
            host, gai_strerror(error));
        return found;
    }
    for (const struct addrinfo *a = all; a && !found.family; a = a->ai_next) {
        found = addrinfo_find_source(a);
        if (found.family && sock_address_is_loopback(&found)) found.family = 0;
    }
    freeaddrinfo(all);
    return found;
}

/* ---- finding the address ---- */
tutti_status interface_find_address(const char *names, const char *store_host, struct sock_address *out)
{
    struct interface *table;
    int count;
    struct sock_address route_source = { .family = 0 };
    if (!*names && store_host) route_source = host_find_route_source(store_host);
    if (route_source.family) { *out = route_source; return TUTTI_OK; }
    TRY(interface_read_table(&table, &count));
    const struct interface *found = interface_choose(table, count, names);
    tutti_status status = found || !*names ? TUTTI_OK : interface_fail_no_match(table, count, names);
    if (found) *out = found->contact;
    else if (status == TUTTI_OK) *out = route_source;
    free(table);
    return status;
}
/* Returns the entry with that address, or NULL. */
static struct interface *interface_find(struct interface *table, int count, const struct sock_address *contact)
{
    int i = 0;
    while (i < count && !sock_address_equal(&table[i].contact, contact)) i++;
    return i < count ? &table[i] : NULL;
}
void interface_find_name(const struct sock_address *contact, char out[INTERFACE_NAME_BYTES])
{
    struct interface *table;
    int count;
    out[0] = 0;
    if (interface_read_table(&table, &count) != TUTTI_OK) return;
    const struct interface *found = interface_find(table, count, contact);
    if (found) memcpy(out, found->name, INTERFACE_NAME_BYTES);
    free(table);
}
void interface_warn_if_slow(const struct sock_address *contact)
{
    static atomic_bool has_warned;
    struct interface *table;
    int count;
    if (atomic_load(&has_warned) || interface_read_table(&table, &count) != TUTTI_OK) return;
    const struct interface *chosen = interface_find(table, count, contact);
    /* Bridges and tunnels have no device, and lead to containers and other networks. */
    for (int i = 0; i < count; i++)
        if (&table[i] == chosen || interface_has_device(table[i].name))
            table[i].speed = interface_read_speed(table[i].name);
    const struct interface *faster = chosen ? interface_find_faster(table, count, chosen) : NULL;
    if (faster && !atomic_exchange(&has_warned, true))
        LOG(WARN,
            "%s (%d Mbit/s) leads to the other hosts, but %s of this host has %d Mbit/s: to use it, give "
            "--master-addr an address of its network, or set TUTTI_SOCKET_IFNAME=%s",
            chosen->name, chosen->speed, faster->name, faster->speed, faster->name);
    free(table);
}
