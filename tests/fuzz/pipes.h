/* Replaces recv and send by pipes in memory, whose sockets are numbers from FIRST_PIPE on. Two sockets with
   neighbouring numbers are a pair: bytes that are sent to one are received from the other. No descriptor has such a
   number, so closing a socket does nothing. Replaces random_fill by numbers that are the same each time. */
#pragma once
#include "backend/base/random.h"
#include "tests/fuzz/input.h"
#include <errno.h>
#include <sys/socket.h>

enum { PIPES = 64, PIPE_BYTES = 2048, FIRST_PIPE = 1 << 24 };
/* The bytes that have come to a socket and are not read yet. ended: after them recv reports the end of the stream. */
struct pipe { unsigned char bytes[PIPE_BYTES]; size_t count; bool ended; };
static struct pipe pipes[PIPES];
/* The number of sockets that were made, and of random bytes that were drawn. */
static int pipes_made;
static uint64_t pipes_drawn;

/* Forgets all sockets, and starts the random numbers again. */
static inline void pipes_reset(void)
{
    pipes_made = 0;
    pipes_drawn = 0;
}
/* Makes a pair of sockets. Returns the first; the second is the next number. -1: no socket is left. */
static inline int pipe_make(void)
{
    if (pipes_made + 2 > PIPES) return -1;
    pipes[pipes_made].count = pipes[pipes_made + 1].count = 0;
    pipes[pipes_made].ended = pipes[pipes_made + 1].ended = false;
    pipes_made += 2;
    return FIRST_PIPE + pipes_made - 2;
}
/* Returns the bytes that have come to a socket. */
static inline struct pipe *pipe_at(int socket) { return &pipes[socket - FIRST_PIPE]; }
/* Returns the other socket of a pair. */
static inline int pipe_other(int socket) { return socket ^ 1; }
/* Adds bytes of the input to those that have come to the socket, although the other end has not sent them. */
static inline void pipe_insert(int socket, struct input *in)
{
    struct pipe *p = pipe_at(socket);
    size_t bytes = input_byte(in), room = sizeof p->bytes - p->count;
    p->count += input_take(in, p->bytes + p->count, bytes < room ? bytes : room);
}
/* Replaces one of the bytes that have come to the socket by a byte of the input. */
static inline void pipe_change(int socket, struct input *in)
{
    struct pipe *p = pipe_at(socket);
    if (p->count) p->bytes[input_byte(in) % p->count] = input_byte(in);
}
/* Receives the bytes that have come to a socket, in place of recv of the C library. */
ssize_t recv(int socket, void *out, size_t bytes, int flags)
{
    struct pipe *p = pipe_at(socket);
    size_t got = bytes < p->count ? bytes : p->count;
    FUZZ_CHECK(flags & MSG_DONTWAIT);
    errno = EAGAIN;
    if (!got) return p->ended ? 0 : -1;
    memcpy(out, p->bytes, got);
    p->count -= got;
    memmove(p->bytes, p->bytes + got, p->count);
    return (ssize_t)got;
}
/* Sends all bytes to the other socket of the pair, or fails with EAGAIN, in place of send of the C library. */
ssize_t send(int socket, const void *from, size_t bytes, int flags)
{
    struct pipe *p = pipe_at(pipe_other(socket));
    FUZZ_CHECK(flags & MSG_NOSIGNAL);
    errno = EAGAIN;
    if (p->count + bytes > sizeof p->bytes) return -1;
    memcpy(p->bytes + p->count, from, bytes);
    p->count += bytes;
    return (ssize_t)bytes;
}
/* Writes bytes that follow from pipes_drawn, in place of backend/base/random.c. */
tutti_status random_fill(void *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) ((unsigned char *)bytes)[i] = (unsigned char)(++pipes_drawn * 0x9e3779b9u >> 13);
    return TUTTI_OK;
}
