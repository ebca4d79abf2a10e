/* SOCK_SEQPACKET keeps messages whole and in order. Unlike a datagram socket it also reports the end of the other
   process. Every descriptor is closed on exec and never blocks. */
#include "backend/host/socket.h"
#include "backend/base/descriptor.h"
#include "backend/base/status.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { LISTEN_QUEUE = 512, MOST_DESCRIPTORS = 4 };

/* ---- names ---- */
/* Makes the abstract socket name of a purpose and a nonce. Returns the length of the socket address. */
static socklen_t socket_make_name(struct sockaddr_un *out, const char *purpose, const unsigned char nonce[NONCE_BYTES])
{
    /* A first byte of zero makes the name abstract. */
    *out = (struct sockaddr_un){ .sun_family = AF_UNIX };
    size_t room = sizeof out->sun_path - 1, used = (size_t)snprintf(out->sun_path + 1, room, "tutti-%.16s-", purpose);
    for (int i = 0; i < NONCE_BYTES; i++)
        used += (size_t)snprintf(out->sun_path + 1 + used, room - used, "%02x", nonce[i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + used);
}
/* Closes the descriptor and returns -error. */
static int descriptor_close_with_error(int descriptor, int error)
{
    close(descriptor);
    return -error;
}
/* Gets the process and the user at the other end. Returns 0 or -errno. */
static int socket_get_peer(int descriptor, struct ucred *out)
{
    socklen_t bytes = sizeof *out;
    return getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, out, &bytes) ? -errno : 0;
}
/* Returns 0 if the process at the other end has the same user as this one, otherwise -errno (-EPERM: another user). */
static int socket_check_user(int descriptor)
{
    struct ucred other;
    int error = socket_get_peer(descriptor, &other);
    return error ? error : other.uid == geteuid() ? 0 : -EPERM;
}
/* Returns the descriptor if the other end has the same user; otherwise closes it and returns -errno. */
static int socket_check_or_close(int descriptor)
{
    int error = socket_check_user(descriptor);
    return error ? descriptor_close_with_error(descriptor, -error) : descriptor;
}

/* ---- connections ---- */
/* Opens a Unix socket of whole messages that does not block. Returns it, or -errno. */
static int socket_open_unix(void)
{
    int descriptor = descriptor_move_above_stderr(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    return descriptor < 0 ? -errno : descriptor;
}
int socket_listen(const char *purpose, const unsigned char nonce[NONCE_BYTES])
{
    struct sockaddr_un name;
    socklen_t bytes = socket_make_name(&name, purpose, nonce);
    int descriptor = socket_open_unix();
    if (descriptor < 0) return descriptor;
    if (bind(descriptor, (struct sockaddr *)&name, bytes) != 0 || listen(descriptor, LISTEN_QUEUE) != 0)
        return descriptor_close_with_error(descriptor, errno);
    return descriptor;
}
int socket_connect(const char *purpose, const unsigned char nonce[NONCE_BYTES])
{
    struct sockaddr_un name;
    socklen_t bytes = socket_make_name(&name, purpose, nonce);
    int descriptor = socket_open_unix();
    if (descriptor < 0) return descriptor;
    if (connect(descriptor, (struct sockaddr *)&name, bytes) != 0)
        return descriptor_close_with_error(descriptor, errno);
    return socket_check_or_close(descriptor);
}
int socket_accept(int listener)
{
    int descriptor;
    do descriptor = descriptor_move_above_stderr(accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
    while (descriptor < 0 && (errno == EINTR || errno == ECONNABORTED));
    return descriptor < 0 ? -errno : socket_check_or_close(descriptor);
}

int64_t socket_peer_process(int socket)
{
    struct ucred other;
    return socket_get_peer(socket, &other) == 0 ? other.pid : 0;
}

/* ---- messages ---- */
/* A buffer for the descriptors of a message. The member `aligned` gives it the alignment that the kernel requires. */
union control_room {
    char bytes[CMSG_SPACE(MOST_DESCRIPTORS * sizeof(int))];
    struct cmsghdr aligned;
};
int socket_send(int socket, const void *message, size_t bytes, int descriptor)
{
    union control_room room = { .bytes = { 0 } };
    struct iovec part = { (void *)(uintptr_t)message, bytes };
    struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1 };
    if (descriptor >= 0) {
        header.msg_control = room.bytes;
        header.msg_controllen = CMSG_SPACE(sizeof descriptor);
        struct cmsghdr *control = CMSG_FIRSTHDR(&header);
        control->cmsg_level = SOL_SOCKET;
        control->cmsg_type = SCM_RIGHTS;
        control->cmsg_len = CMSG_LEN(sizeof descriptor);
        memcpy(CMSG_DATA(control), &descriptor, sizeof descriptor);
    }
    ssize_t sent;
    do sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? -errno : 0;
}
/* Sets *out to the first descriptor of a received message, and closes all others, because the kernel has already
   installed each of them. The caller sets *out to -1 before. */
static void socket_take_descriptors(struct msghdr *header, int *out)
{
    for (struct cmsghdr *control = CMSG_FIRSTHDR(header); control; control = CMSG_NXTHDR(header, control)) {
        if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
        size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int received;
            memcpy(&received, CMSG_DATA(control) + i * sizeof received, sizeof received);
            if (*out < 0) *out = descriptor_move_above_stderr(received);
            else close(received);
        }
    }
}
int socket_receive(int socket, void *message, size_t bytes, int *descriptor)
{
    union control_room room;
    struct iovec part = { message, bytes };
    struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &room, .msg_controllen = sizeof room };
    int received = -1;
    ssize_t got;
    if (descriptor) *descriptor = -1;
    /* ECONNRESET means that the other end closed with unread messages. The kernel returns it once, before the messages
       that the other end had sent. */
    do got = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (got < 0 && (errno == EINTR || errno == ECONNRESET));
    if (got < 0) return -errno;
    socket_take_descriptors(&header, &received);
    bool is_whole = got > 0 && !(header.msg_flags & MSG_TRUNC);
    if (received >= 0 && !(descriptor && is_whole)) { close(received); received = -1; }
    if (descriptor) *descriptor = received;
    return is_whole || got == 0 ? (int)got : -EMSGSIZE;
}
