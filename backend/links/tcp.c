/* The receive buffer has a fixed size. A link relies on room for its whole window (frame.h), even if the window arrives
 * in the smallest pieces. */
#include "backend/links/tcp.h"
#include "backend/base/descriptor.h"
#include "backend/base/settings.h"
#include "backend/links/ports.h"
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LISTEN_QUEUE = 4096, RECEIVE_BYTES = 128 * 1024 };
union local_name {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
};
/* Converts an address to the kernel's form and returns its length. A link-local address gets the scope of `near`, a
   local address, if that has one. */
static socklen_t tcp_name_of_address(const struct sock_address *address, const struct sock_address *near,
    union local_name *out)
{
    memset(out, 0, sizeof *out);
    out->any.sa_family = address->family;
    if (address->family == AF_INET) {
        out->four.sin_port = htons(address->port);
        memcpy(&out->four.sin_addr, address->address, sizeof out->four.sin_addr);
        return sizeof out->four;
    }
    out->six.sin6_port = htons(address->port);
    memcpy(&out->six.sin6_addr, address->address, sizeof out->six.sin6_addr);
    /* Each host numbers its own interfaces, so a link-local address needs the scope of this host. */
    if (IN6_IS_ADDR_LINKLOCAL(&out->six.sin6_addr))
        out->six.sin6_scope_id = near->family == AF_INET6 && near->scope ? near->scope : address->scope;
    return sizeof out->six;
}
/* Converts an address from the kernel's form. The family is 0 if it is neither IPv4 nor IPv6. */
static struct sock_address tcp_address_of_name(const union local_name *name)
{
    struct sock_address address = { .family = name->any.sa_family };
    if (address.family == AF_INET) {
        address.port = ntohs(name->four.sin_port);
        memcpy(address.address, &name->four.sin_addr, sizeof name->four.sin_addr);
    } else if (address.family == AF_INET6) {
        address.port = ntohs(name->six.sin6_port);
        memcpy(address.address, &name->six.sin6_addr, sizeof name->six.sin6_addr);
        address.scope = name->six.sin6_scope_id;
    } else address.family = 0;
    return address;
}
struct sock_address tcp_local_address(int socket)
{
    union local_name name = { .any = { 0 } };
    socklen_t bytes = sizeof name;
    getsockname(socket, &name.any, &bytes);
    return tcp_address_of_name(&name);
}
struct sock_address tcp_remote_address(int socket)
{
    union local_name name = { .any = { 0 } };
    socklen_t bytes = sizeof name;
    getpeername(socket, &name.any, &bytes);
    return tcp_address_of_name(&name);
}
void tcp_set_option(int socket, int level, int option, int value)
{
    setsockopt(socket, level, option, &value, sizeof value);
}
/* Returns TCP_USER_TIMEOUT: how many ms a host may be silent until the kernel ends the connection, whatever the number
   of keepalive probes. The kernel counts from its first retransmission. A heartbeat is sent at most a tenth of
   TUTTI_PEER_TIMEOUT_MS after the silence began, and its retransmission follows a little over 200 ms later. So both
   times are subtracted. */
static int tcp_user_timeout_ms(void)
{
    int peer_timeout_ms = (int)settings_get()->peer_timeout_ms, most_ms = peer_timeout_ms * 8 / 10;
    int rest_ms = peer_timeout_ms * 9 / 10 - 300;
    return rest_ms < most_ms ? rest_ms : most_ms;
}
/* Sets keepalive and timeouts, so that a dead host is noticed. */
static void tcp_set_options(int socket)
{
    tcp_set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
    tcp_set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
    tcp_set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 1);
    tcp_set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
    tcp_set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, tcp_user_timeout_ms());
}
/* Opens a non-blocking socket. Returns it, or a negative errno. */
static int tcp_open_socket(int family)
{
    if (family != AF_INET && family != AF_INET6) return -EAFNOSUPPORT;
    int descriptor = descriptor_move_above_stderr(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (descriptor < 0) return -errno;
    /* The size must be set before the connection is made. Accepted sockets inherit it. */
    tcp_set_option(descriptor, SOL_SOCKET, SO_RCVBUF, RECEIVE_BYTES);
    return descriptor;
}
/* Closes the descriptor and returns -error. */
static int tcp_close_with_error(int descriptor, int error)
{
    close(descriptor);
    return -error;
}
int tcp_listen_at_name(int descriptor, const struct sockaddr *name, socklen_t bytes)
{
    /* The port lies at the same place in names of both families. */
    bool has_port = ((const struct sockaddr_in *)(const void *)name)->sin_port != 0;
    if (name->sa_family == AF_INET6) tcp_set_option(descriptor, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    /* Connections of an earlier process may still occupy the port for a minute. */
    if (has_port) tcp_set_option(descriptor, SOL_SOCKET, SO_REUSEADDR, 1);
    if (bind(descriptor, name, bytes) != 0 || listen(descriptor, LISTEN_QUEUE) != 0)
        return tcp_close_with_error(descriptor, errno);
    return descriptor;
}
/* Listens at a port of an address, the context. It is a listen_at_port. */
static int tcp_listen_at_port(void *context, uint16_t port)
{
    union local_name name;
    struct sock_address at = *(const struct sock_address *)context;
    int descriptor = tcp_open_socket(at.family);
    if (descriptor < 0) return descriptor;
    at.port = port;
    socklen_t bytes = tcp_name_of_address(&at, &at, &name);
    return tcp_listen_at_name(descriptor, &name.any, bytes);
}
int tcp_listen(const struct sock_address *at)
{
    struct sock_address address = *at;
    return at->port ? tcp_listen_at_port(&address, at->port) : ports_listen_at_first_free(tcp_listen_at_port, &address);
}
int tcp_start_connect(const struct sock_address *at, const struct sock_address *near)
{
    union local_name name;
    int descriptor = tcp_open_socket(at->family);
    if (descriptor < 0) return descriptor;
    socklen_t bytes = tcp_name_of_address(at, near, &name);
    tcp_set_options(descriptor);
    if (connect(descriptor, &name.any, bytes) != 0 && errno != EINPROGRESS)
        return tcp_close_with_error(descriptor, errno);
    return descriptor;
}
int tcp_accept(int listener)
{
    int descriptor;
    do descriptor = descriptor_move_above_stderr(accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
    while (descriptor < 0 && (errno == EINTR || errno == ECONNABORTED));
    if (descriptor < 0) return -errno;
    tcp_set_options(descriptor);
    return descriptor;
}
int tcp_take_error(int socket)
{
    int error = 0;
    socklen_t bytes = sizeof error;
    return getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0 ? -errno : -error;
}
void tcp_drain(int socket)
{
    char ignored[4096];
    for (int i = 0; i < 64 && recv(socket, ignored, sizeof ignored, MSG_DONTWAIT) > 0; i++);
}
double tcp_one_way_ns(int socket)
{
    struct tcp_info info = { .tcpi_min_rtt = 0 };
    socklen_t bytes = sizeof info;
    if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return 0;
    return info.tcpi_min_rtt == UINT32_MAX ? 0 : info.tcpi_min_rtt * 1000.0 / 2;
}
