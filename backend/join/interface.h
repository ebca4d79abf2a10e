/* The network interface, and its address, at which other hosts reach this process. */
#pragma once
#include "backend/links/links.h"

enum { INTERFACE_NAME_BYTES = 16 };
/* One address of an interface. An interface with several addresses has several entries in a row. */
struct interface {
    char name[INTERFACE_NAME_BYTES];
    /* The interface is up and plugged in. */
    bool up;
    /* In Mbit/s as the kernel gives it; 0 if it is unknown, has not been read, or is that of no device. */
    int speed;
    /* The port is 0. */
    struct sock_address contact;
};
/* Returns true if only its own host can reach the address. */
bool sock_address_is_loopback(const struct sock_address *contact);
/* Chooses the first interface that `names` allows, in the order of `names`, or returns NULL. The format is that of
   TUTTI_SOCKET_IFNAME: "eth,ib0" gives prefixes, "=eth0" whole names, and "^docker,lo" excludes names and all loopback
   addresses. The interface must be up. A link-local address is used only if there is no other. */
const struct interface *interface_choose(const struct interface *table, int count, const char *names);
/* Finds the address of this process for other hosts. `names` decides unless it is empty. INVALID_ARGUMENT: no
   interface that is up matches, and the text lists all interfaces. Otherwise the interface that leads to `store_host`
   (or NULL) is used. If that is unknown or loopback, interface_choose decides. The family of *out is 0 if no address
   is found. */
tutti_status interface_find_address(const char *names, const char *store_host, struct sock_address *out);
/* Returns the fastest interface that other hosts could reach, if it has at least twice the speed of the chosen one.
   Returns NULL otherwise, and if the speed of the chosen one is unknown. */
const struct interface *interface_find_faster(const struct interface *table, int count, const struct interface *chosen);
/* Warns, once in a process, that the interface with that address is slower than another one of this host. */
void interface_warn_if_slow(const struct sock_address *contact);
/* Sets `out` to the name of the interface with that address, or to an empty string. */
void interface_find_name(const struct sock_address *contact, char out[INTERFACE_NAME_BYTES]);
