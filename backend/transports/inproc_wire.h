/* What the ranks of inproc share: the ports of all, a clock, and what is on its way. The parts of inproc.c and
   inproc_wire.c, and no others. */
#pragma once
#include "backend/transports/inproc.h"
#include <pthread.h>

enum inproc_kind {
    EAGER,    /* a message, with its bytes */
    ANNOUNCE, /* a message; the bytes stay where they are */
    WITHDRAW, /* the send `id` is not coming any more */
    OVER,     /* your send `id` is: it has been read, or the receive wants `bytes`, not what you have */
};
struct inproc_message {
    struct inproc_message *next;
    enum inproc_kind kind;
    struct message_name name;
    uint64_t bytes, id, due;
    int source;
    bool agreed; /* of OVER */
    unsigned char data[];
};
struct inproc_port { /* one rank's end */
    struct transport base;
    struct inproc_world *world;
    struct inproc_message *inbox; /* by due time */
    struct queue open, reads;
    uint64_t bytes_sent;
    bool armed;
    struct bond { /* with each other rank */
        int buffered; /* small messages to it that hold budget */
        bool lost;
    } *bonds;
};
struct inproc_world {
    pthread_mutex_t lock;
    struct inproc_options options;
    int size;
    uint64_t clock, random, sent;
    struct inproc_port *ports;
    struct inproc_world *next; /* of those that are joined */
    uint64_t comm;
    int closed; /* of its ranks; of a world that was made by inproc_create nobody counts */
    bool joined;
    struct inproc_wire { /* with a clock of microseconds */
        pthread_t thread;
        pthread_cond_t changed; /* what is due, or who is to be woken for it */
        bool runs, ends;
        int64_t begin_ns;
    } wire;
};

/* ---- with the lock ---- */
struct inproc_port *port_enter(struct transport *transport); /* takes it */
void port_leave(struct inproc_port *port);
uint64_t wire_draw(struct inproc_world *world);
uint64_t wire_soon(struct inproc_world *world); /* a time at random, from now to the longest delay */
void port_notice(struct inproc_port *port);            /* something is on its way to it */
/* The next poll has something to say, now or, if it is polls that count, soon. */
bool port_is_about_to_move(const struct inproc_port *port);
bool port_arm(struct inproc_port *port);

/* ---- without ---- */
void wire_part(struct inproc_world *world); /* a rank has closed its port */
extern const struct transport_operations inproc_operations;
