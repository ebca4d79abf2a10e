/* A transport for tests. Its ranks are threads of one process, or one thread acts as all of them. It delays and
   reorders messages at random and otherwise behaves like a network. */
#pragma once
#include "backend/transports/router.h"

struct inproc_options {
    unsigned seed;
    /* The upper limit of the delay of each message, each answer and each part that is read, in polls: every rank's
       polls count. */
    int delay;
    /* true: `delay` counts microseconds, and a thread rings the bell of a rank when its message is due. */
    bool in_time;
    /* The number of unrequested small messages that a rank may have at each other rank. */
    int budget;
    /* How long a rank may go on reading a send after its cancel, in ms. 0: TRANSPORT_CANCEL_MS. */
    int cancel_ms;
    /* 1 + the number of a rank that starts to read large messages and never finishes. 0: every rank finishes. */
    int halted;
};
/* The world of the ranks of one communicator. */
struct inproc_world;
/* Returns NULL if memory is exhausted. */
struct inproc_world *inproc_world_create(int size, const struct inproc_options *options);
/* The caller destroys all routers of the world first. `world` may be NULL. */
void inproc_world_destroy(struct inproc_world *world);
/* Makes the world the transport of this router to all ranks that have no transport yet. */
void inproc_world_connect(struct inproc_world *world, struct router *router);
/* Connects the router in the world of its communicator. The first rank creates the world, the last one to be destroyed
   frees it. */
tutti_status inproc_world_join(const struct inproc_options *options, struct router *router);
/* Returns the bytes of all messages that this rank has posted. */
uint64_t inproc_world_bytes_sent(struct inproc_world *world, int rank);
