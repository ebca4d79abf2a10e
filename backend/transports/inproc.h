/* The transport between ranks that are threads of one process, or all played by one thread, for tests: it delays and
   reorders messages at random, and for the rest does what a network does. */
#pragma once
#include "backend/transports/router.h"

struct inproc_options {
    unsigned seed;
    int delay;  /* up to so many polls of anybody, for each message, answer and part that is read */
    bool in_time; /* so many microseconds instead: what is under way is not looked for, it wakes */
    int budget; /* small messages that a rank may have with each other unasked */
    int cancel_ms; /* how long a cancelled send may stay with a rank that reads it; 0: TRANSPORT_CANCEL_MS */
    int halted; /* 1 + a rank that begins to read large messages and never ends; 0: none */
};
struct inproc_world; /* of the ranks of one communicator */
struct inproc_world *inproc_create(int size, const struct inproc_options *options); /* NULL: out of memory */
void inproc_destroy(struct inproc_world *world); /* after all its routers; NULL is fine */
/* For this rank, to those that no transport of the router leads to yet. */
void inproc_connect(struct inproc_world *world, struct router *router);
/* The same, in the world of the router's communicator: the first rank makes it, the last to be destroyed ends it. */
tutti_status inproc_join(const struct inproc_options *options, struct router *router);
uint64_t inproc_bytes_sent(struct inproc_world *world, int rank); /* of all messages that this rank has posted */
