/* The address where this process listens, and how it opens sockets. It uses the network interface that leads to the
 * other hosts, with IPv4 if the interface has such an address. Simulated hosts use loopback. */
#include "backend/base/descriptor.h"
#include "backend/links/ports.h"
#include "backend/links/tcp.h"
#include "backend/transports/tcp/sockets.h"
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The name of a socket: its address and port, in the form of the kernel. */
union name {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
};
/* Returns the length of a socket's name, which depends on its family. */
static socklen_t socket_name_bytes(const union name *name)
{
    return name->any.sa_family == AF_INET ? sizeof name->four : sizeof name->six;
}
/* Returns the score of an address, which is 0 unless it is usable and belongs to the interface `device`: IPv4 is best,
   link-local IPv6 worst. */
static int interface_address_score(const struct ifaddrs *at, const char *device)
{
    union name name;
    if (!at->ifa_addr || strcmp(at->ifa_name, device) != 0 || !(at->ifa_flags & IFF_UP)) return 0;
    if (at->ifa_addr->sa_family == AF_INET) return 3;
    if (at->ifa_addr->sa_family != AF_INET6) return 0;
    memcpy(&name.six, at->ifa_addr, sizeof name.six);
    return IN6_IS_ADDR_LINKLOCAL(&name.six.sin6_addr) ? 1 : 2;
}
/* Writes the best address of a network interface (see interface_address_score). UNSUPPORTED: it has none. */
static tutti_status device_find_address(const char *device, union name *out)
{
    struct ifaddrs *all;
    int best = 0;
    if (getifaddrs(&all) != 0)
        return status_fail(TUTTI_SYSTEM, "the network interfaces cannot be listed: %s", strerror(errno));
    for (const struct ifaddrs *at = all; at; at = at->ifa_next) {
        int worth = interface_address_score(at, device);
        if (worth <= best) continue;
        best = worth;
        memcpy(out, at->ifa_addr, at->ifa_addr->sa_family == AF_INET ? sizeof out->four : sizeof out->six);
    }
    freeifaddrs(all);
    if (best) return TUTTI_OK;
    return status_fail(TUTTI_UNSUPPORTED,
        "the network interface %s is down or has no address (TUTTI_SOCKET_IFNAME chooses another)", device);
}
/* Returns the descriptor of a new non-blocking TCP socket, or a negative errno. */
static int tcp_socket_open(int family)
{
    int descriptor = descriptor_move_above_stderr(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    return descriptor < 0 ? -errno : descriptor;
}
/* Stores the address and port of the listener, whose name is `name`. */
static void sockets_store_address(struct sockets *sockets, const union name *name)
{
    sockets->address.family = name->any.sa_family;
    if (sockets->address.family == AF_INET) {
        sockets->address.port = ntohs(name->four.sin_port);
        memcpy(sockets->address.address, &name->four.sin_addr, sizeof name->four.sin_addr);
        return;
    }
    sockets->address.port = ntohs(name->six.sin6_port);
    memcpy(sockets->address.address, &name->six.sin6_addr, sizeof name->six.sin6_addr);
    sockets->scope_id = name->six.sin6_scope_id;
}
/* Listens at a port of an address, the context (union name), which gets the port. It is a listen_at_port. */
static int fabric_listen_at_port(void *context, uint16_t port)
{
    union name *name = context;
    socklen_t bytes = socket_name_bytes(name);
    int descriptor = tcp_socket_open(name->any.sa_family);
    if (descriptor < 0) return descriptor;
    if (name->any.sa_family == AF_INET) name->four.sin_port = htons(port);
    else name->six.sin6_port = htons(port);
    descriptor = tcp_listen_at_name(descriptor, &name->any, bytes);
    if (descriptor >= 0) getsockname(descriptor, &name->any, &bytes);
    return descriptor;
}
tutti_status tcp_address_listen(struct sockets *sockets, const struct fabric_environment *environment)
{
    char why[PORTS_TEXT_BYTES];
    union name name = { .four = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) } };
    const char *device = environment->simulated ? NULL : environment->device;
    if (device) TRY(device_find_address(device, &name));
    int descriptor = sockets->listener.descriptor = ports_listen_at_first_free(fabric_listen_at_port, &name);
    if (descriptor < 0)
        return status_fail(TUTTI_SYSTEM, "TCP cannot listen on %s: %s", device ? device : "loopback",
            ports_print_listen_error(descriptor, why));
    sockets_store_address(sockets, &name);
    return TUTTI_OK;
}
int tcp_address_connect(const struct sockets *sockets, const struct tcp_address *address)
{
    union name name;
    memset(&name, 0, sizeof name);
    name.any.sa_family = address->family;
    if (address->family == AF_INET) {
        name.four.sin_port = htons(address->port);
        memcpy(&name.four.sin_addr, address->address, sizeof name.four.sin_addr);
    } else {
        name.six.sin6_port = htons(address->port);
        memcpy(&name.six.sin6_addr, address->address, sizeof name.six.sin6_addr);
        /* Each host has its own scope id. */
        if (IN6_IS_ADDR_LINKLOCAL(&name.six.sin6_addr)) name.six.sin6_scope_id = sockets->scope_id;
    }
    int descriptor = tcp_socket_open(address->family);
    if (descriptor < 0) return descriptor;
    tcp_set_option(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
    tcp_set_option(descriptor, IPPROTO_TCP, TCP_NOTSENT_LOWAT, NOT_SENT_BYTES);
    if (connect(descriptor, &name.any, socket_name_bytes(&name)) == 0 || errno == EINPROGRESS) return descriptor;
    int error = errno;
    close(descriptor);
    return -error;
}
int tcp_socket_accept(int listener)
{
    int descriptor;
    do descriptor = descriptor_move_above_stderr(accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
    while (descriptor < 0 && (errno == EINTR || errno == ECONNABORTED));
    if (descriptor < 0) return -errno;
    tcp_set_option(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
    tcp_set_option(descriptor, IPPROTO_TCP, TCP_NOTSENT_LOWAT, NOT_SENT_BYTES);
    return descriptor;
}
void tcp_socket_print_peer(int descriptor, char *out, size_t bytes)
{
    union name name = { .any.sa_family = AF_UNSPEC };
    socklen_t length = sizeof name;
    char text[INET6_ADDRSTRLEN] = "an address that is not known";
    getpeername(descriptor, &name.any, &length);
    if (name.any.sa_family == AF_INET) inet_ntop(AF_INET, &name.four.sin_addr, text, sizeof text);
    if (name.any.sa_family == AF_INET6) inet_ntop(AF_INET6, &name.six.sin6_addr, text, sizeof text);
    snprintf(out, bytes, "%s", text);
}
int tcp_socket_error(int descriptor)
{
    int error = 0;
    socklen_t bytes = sizeof error;
    return getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0 ? errno : error;
}
