/* UCX 1.13 tries the ports of its range again and again until one is free, without an error. So tutti first checks that
   a port is free. The processes of a host check and start UCX one after the other, so that no two count on the same
   port. */
#include "backend/links/ports.h"
#include "backend/base/clock.h"
#include "backend/base/descriptor.h"
#include "backend/base/log.h"
#include "backend/base/settings.h"
#include "backend/base/status.h"
#include "backend/links/tcp.h"
#include "backend/transports/ucx/worker.h"
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* A process that is stopped while it has the lock delays the others only this long. */
enum { LOCK_MS = 10000, RETRY_NS = 1000000 };

/* Gives the socket the name of the lock: an abstract name, which ends with its process, and is seen in the same network
   namespace. Each user has one, so that a process of another user cannot hold it. Returns 0, or an errno. */
static int ucx_lock_bind(int descriptor)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    size_t room = sizeof name.sun_path - 1;
    int length = snprintf(name.sun_path + 1, room, "tutti-ucx-ports-%u", (unsigned)geteuid());
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    return bind(descriptor, (const struct sockaddr *)&name, bytes) == 0 ? 0 : errno;
}
/* Locks the start of UCX for the processes of this user on this host. Returns a descriptor that ucx_unlock_ports
   closes, or -1 after a warning if the lock is unavailable. */
static int ucx_lock_ports(void)
{
    int descriptor = descriptor_move_above_stderr(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    int error = descriptor < 0 ? errno : ucx_lock_bind(descriptor);
    for (int64_t until_ms = clock_deadline(LOCK_MS); error == EADDRINUSE && clock_ms() < until_ms;) {
        nanosleep(&(struct timespec){ 0, RETRY_NS }, NULL);
        error = ucx_lock_bind(descriptor);
    }
    if (error == 0) return descriptor;
    if (descriptor >= 0) close(descriptor);
    LOG(WARN,
        "UCX starts beside other processes of this host, which have been starting it for %d s (%s). If it does not "
        "start, TUTTI_PORTS=%s is used up: set a larger range",
        LOCK_MS / 1000, strerror(error), settings_get()->ports);
    return -1;
}
void ucx_unlock_ports(int lock)
{
    if (lock >= 0) close(lock);
}
/* Returns true if UCX listens at the ports of TUTTI_PORTS, and not at others that the user has given to UCX. */
static bool ucx_uses_ports(void)
{
    const char *range = settings_read_variable("UCX_TCP_PORT_RANGE"), *ports = settings_get()->ports;
    return *ports && (!range || strcmp(range, ports) == 0);
}
tutti_status ucx_reserve_port(int *lock)
{
    char why[PORTS_TEXT_BYTES];
    *lock = -1;
    if (!ucx_uses_ports()) return TUTTI_OK;
    *lock = ucx_lock_ports();
    int socket = tcp_listen(&(struct sock_address){ .family = AF_INET });
    if (socket >= 0) {
        close(socket);
        return TUTTI_OK;
    }
    ucx_unlock_ports(*lock);
    *lock = -1;
    return status_fail(TUTTI_SYSTEM, "UCX cannot listen: %s", ports_print_listen_error(socket, why));
}
