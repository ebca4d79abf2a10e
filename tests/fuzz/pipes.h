/* Sockets that are numbers, in place of recv and send: what is sent to one comes from the other of its pair, which is
   the number beside it. No descriptor has such a number, so to close one does nothing. And random numbers that are
   the same each time. */
#pragma once
#include "backend/base/random.h"
#include "tests/fuzz/input.h"
#include <errno.h>
#include <sys/socket.h>

enum { PIPES = 64, PIPE_BYTES = 2048, FIRST_PIPE = 1 << 24 };
struct pipe { unsigned char bytes[PIPE_BYTES]; size_t count; bool ended; };    /* that have come and are not read yet */
static struct pipe pipes[PIPES];
static int pipes_made;
static uint64_t pipes_drawn;

static inline void pipes_reset(void)
{
    pipes_made = 0;
    pipes_drawn = 0;
}
/* The first of two, or -1. */
static inline int pipe_make(void)
{
    if (pipes_made + 2 > PIPES) return -1;
    pipes[pipes_made].count = pipes[pipes_made + 1].count = 0;
    pipes[pipes_made].ended = pipes[pipes_made + 1].ended = false;
    pipes_made += 2;
    return FIRST_PIPE + pipes_made - 2;
}
static inline struct pipe *pipe_at(int socket) { return &pipes[socket - FIRST_PIPE]; }
static inline int pipe_other(int socket) { return socket ^ 1; }
/* Something comes that the other end has not sent, or something else than it has. */
static inline void pipe_insert(int socket, struct input *in)
{
    struct pipe *p = pipe_at(socket);
    size_t bytes = input_byte(in), room = sizeof p->bytes - p->count;
    p->count += input_take(in, p->bytes + p->count, bytes < room ? bytes : room);
}
static inline void pipe_change(int socket, struct input *in)
{
    struct pipe *p = pipe_at(socket);
    if (p->count) p->bytes[input_byte(in) % p->count] = input_byte(in);
}
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
/* In place of backend/base/random.c. */
tutti_status random_fill(void *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) ((unsigned char *)bytes)[i] = (unsigned char)(++pipes_drawn * 0x9e3779b9u >> 13);
    return TUTTI_OK;
}
