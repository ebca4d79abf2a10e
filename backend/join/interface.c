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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static_assert((int)INTERFACE_NAME_BYTES == (int)IF_NAMESIZE, "room for a name");

/* ---- addresses ---- */
/* The family of the result is 0 unless the address is IPv4 or IPv6. */
static struct contact contact_of(const struct sockaddr *address)
{
    struct contact c = { .family = 0 };
    const struct sockaddr_in *four = (const void *)address;
    const struct sockaddr_in6 *six = (const void *)address;
    if (!address) return c;
    if (address->sa_family == AF_INET) memcpy(c.address, &four->sin_addr, sizeof four->sin_addr);
    else if (address->sa_family == AF_INET6) memcpy(c.address, &six->sin6_addr, sizeof six->sin6_addr);
    else return c;
    c.family = address->sa_family;
    if (address->sa_family == AF_INET6) c.scope = six->sin6_scope_id;
    return c;
}
/* Compares the addresses without the ports. */
static bool contact_equal(const struct contact *a, const struct contact *b)
{
    return a->family == b->family && memcmp(a->address, b->address, sizeof a->address) == 0;
}
bool contact_is_loopback(const struct contact *c)
{
    static const unsigned char one[16] = { [15] = 1 };
    return c->family == AF_INET ? c->address[0] == 127 : memcmp(c->address, one, sizeof one) == 0;
}
static bool is_of_link(const struct contact *c)
{
    if (c->family == AF_INET) return c->address[0] == 169 && c->address[1] == 254;
    return c->address[0] == 0xfe && (c->address[1] & 0xc0) == 0x80;
}

/* ---- choosing ---- */
struct filter { bool exact, but; const char *names; };
static struct filter read_filter(const char *names)
{
    struct filter f = { .but = names[0] == '^' };
    names += f.but;
    f.exact = names[0] == '=';
    f.names = names + f.exact;
    return f;
}
static bool is_named(const struct interface *i, bool exact, const char *name, size_t length)
{
    bool whole = exact || name[0] == '=';
    if (name[0] == '=') { name++; length--; }
    return length && strncmp(i->name, name, length) == 0 && (!whole || strlen(i->name) == length);
}
static const struct interface *first_of(const struct interface *table, int count, bool exact, const char *name,
    size_t length)
{
    const struct interface *of_link = NULL;
    for (int i = 0; i < count; i++) {
        if (!table[i].up || !is_named(&table[i], exact, name, length)) continue;
        if (!is_of_link(&table[i].contact)) return &table[i];
        if (!of_link) of_link = &table[i];
    }
    return of_link;
}
static bool is_excluded(const struct filter *f, const struct interface *i)
{
    for (const char *name = f->names;; name++) {
        size_t length = strcspn(name, ",");
        if (is_named(i, f->exact, name, length)) return true;
        if (!*(name += length)) return false;
    }
}
static const struct interface *first_but(const struct interface *table, int count, const struct filter *f)
{
    const struct interface *of_link = NULL;
    for (int i = 0; i < count; i++) {
        if (!table[i].up || contact_is_loopback(&table[i].contact) || is_excluded(f, &table[i])) continue;
        if (!is_of_link(&table[i].contact)) return &table[i];
        if (!of_link) of_link = &table[i];
    }
    return of_link;
}
const struct interface *interface_choose(const struct interface *table, int count, const char *names)
{
    struct filter f = read_filter(names);
    if (f.but || !*f.names) return first_but(table, count, &f);
    for (const char *name = f.names;; name++) {
        size_t length = strcspn(name, ",");
        const struct interface *found = first_of(table, count, f.exact, name, length);
        if (found || !*(name += length)) return found;
    }
}

/* ---- the system's table ---- */
static tutti_status read_table(struct interface **out, int *count)
{
    struct ifaddrs *all, *a;
    int found = 0;
    if (getifaddrs(&all) != 0)
        return status_fail(TUTTI_SYSTEM, "the network interfaces cannot be listed: %s", strerror(errno));
    for (a = all; a; a = a->ifa_next) found++;
    struct interface *table = memory_zeroed((size_t)found + 1, sizeof *table);
    found = 0;
    for (a = all; a && table; a = a->ifa_next) {
        struct interface *i = &table[found];
        i->contact = contact_of(a->ifa_addr);
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
static tutti_status interface_refuse(const struct interface *table, int count, const char *names)
{
    char all[STATUS_DETAIL_BYTES / 2] = "", address[INET6_ADDRSTRLEN];
    for (int i = 0; i < count; i++) {
        size_t used = strlen(all);
        inet_ntop(table[i].contact.family, table[i].contact.address, address, sizeof address);
        snprintf(all + used, sizeof all - used, "%s%s (%s%s)", i ? ", " : "", table[i].name, address,
            table[i].up ? "" : ", down");
    }
    return status_fail(TUTTI_INVALID_ARGUMENT,
        "TUTTI_SOCKET_IFNAME=%.100s: no such network interface is up and has an address; usable ones are %s", names,
        count ? all : "none");
}

/* ---- the route to the store ---- */
/* Returns the local address of the route. A UDP socket gets it when it is connected, and no packet is sent. */
static struct contact find_source(const struct addrinfo *to)
{
    struct sockaddr_storage local;
    socklen_t bytes = sizeof local;
    struct contact found = { .family = 0 };
    int probe = descriptor_raised(socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (probe < 0) return found;
    if (connect(probe, to->ai_addr, to->ai_addrlen) == 0 && getsockname(probe, (void *)&local, &bytes) == 0)
        found = contact_of((const void *)&local);
    close(probe);
    return found;
}
/* Returns the local address of the route to that host. The family is 0 if no route is known, or if it is this host. */
static struct contact find_way(const char *host)
{
    struct addrinfo want = { .ai_socktype = SOCK_DGRAM }, *all;
    struct contact found = { .family = 0 };
    int error = getaddrinfo(host, "1", &want, &all);
    if (error) {
        LOG(WARN, "the host of the store, %s, was not found (%s), so the network interface that leads to it is unknown",
            host, gai_strerror(error));
        return found;
    }
    for (const struct addrinfo *a = all; a && !found.family; a = a->ai_next) {
        found = find_source(a);
        if (found.family && contact_is_loopback(&found)) found.family = 0;
    }
    freeaddrinfo(all);
    return found;
}

/* ---- finding the address ---- */
tutti_status interface_find(const char *names, const char *store_host, struct contact *out)
{
    struct interface *table;
    int count;
    struct contact way = { .family = 0 };
    if (!*names && store_host) way = find_way(store_host);
    if (way.family) { *out = way; return TUTTI_OK; }
    TRY(read_table(&table, &count));
    const struct interface *found = interface_choose(table, count, names);
    tutti_status status = found || !*names ? TUTTI_OK : interface_refuse(table, count, names);
    if (found) *out = found->contact;
    else if (status == TUTTI_OK) *out = way;
    free(table);
    return status;
}
void interface_name(const struct contact *contact, char out[INTERFACE_NAME_BYTES])
{
    struct interface *table;
    int count;
    out[0] = 0;
    if (read_table(&table, &count) != TUTTI_OK) return;
    for (int i = 0; i < count && !out[0]; i++)
        if (contact_equal(&table[i].contact, contact)) memcpy(out, table[i].name, INTERFACE_NAME_BYTES);
    free(table);
}
