/* The state that all ranks of inproc share: their ports, a clock, and the messages on their way. Only inproc.c and
   inproc_wire.c include this file. */
#pragma once
#include "tests/support/inproc.h"
#include <pthread.h>

enum inproc_kind {
    /* The message carries its bytes. */
    EAGER,
    /* The message is announced, and its bytes stay at the sender. */
    ANNOUNCE,
    /* The sender has cancelled the send `id`. */
    WITHDRAW,
    /* The receiver has read the send `id`, or (not `agreed`) its receive wants `bytes` bytes of the type in `name`. */
    OVER,
};
struct inproc_message {
    struct inproc_message *next;
    enum inproc_kind kind;
    struct message_name name;
    /* `bytes` is the length of the whole message, `id` the sender's key of the send, and `due` the time of arrival by
       the clock of the world. */
    uint64_t bytes, id, due;
    int source;
    /* OVER: the sizes and types of the two ends agree. */
    bool agreed;
    unsigned char data[];
};
/* One rank's end. */
struct inproc_port {
    struct transport base;
    struct inproc_world *world;
    /* Messages in the order of their due times. */
    struct inproc_message *inbox;
    struct transfer_list open, reads;
    uint64_t bytes_sent;
    bool armed;
    /* The state with each other rank. */
    struct bond {
        /* The number of small messages to that rank that use budget. */
        int buffered;
        bool lost;
    } *bonds;
};
struct inproc_world {
    pthread_mutex_t lock;
    struct inproc_options options;
    int size;
    /* `clock` counts the polls of all ranks, or microseconds (in_time). `random` is the state of the random numbers,
       and `sent` the number of sends so far, from which the sends get their keys. */
    uint64_t clock, random, sent;
    struct inproc_port *ports;
    /* Links the worlds that inproc_world_join created. */
    struct inproc_world *next;
    uint64_t comm;
    /* The number of closed ranks, counted only in a joined world. */
    int closed;
    bool joined;
    /* The thread that runs if the clock counts microseconds. */
    struct inproc_wire {
        pthread_t thread;
        /* Signals that due times or armed ports have changed. */
        pthread_cond_t changed;
        bool runs, ends;
        int64_t begin_ns;
    } wire;
};

/* ---- under the lock of the world ---- */
/* Takes the lock of the transport's world, and returns its port. inproc_port_unlock releases the lock. */
struct inproc_port *inproc_port_lock(struct transport *transport);
void inproc_port_unlock(struct inproc_port *port);
uint64_t inproc_world_random(struct inproc_world *world);
/* Returns a random time between now and the longest delay. */
uint64_t inproc_world_due_time(struct inproc_world *world);
/* Wakes the wire thread, or the rank itself, for a message that is on its way to the port. */
void inproc_port_notify(struct inproc_port *port);
/* Returns true if a poll has something to do: now, or, if the clock counts polls, after some more polls. */
bool inproc_port_has_work(const struct inproc_port *port);
/* Makes the next message for the port ring the bell of its rank. Returns false, and does not, if the port has work. */
bool inproc_port_arm(struct inproc_port *port);

/* ---- without the lock ---- */
/* Counts a rank that has closed its port. The last one frees the world. */
void inproc_world_close_rank(struct inproc_world *world);
extern const struct transport_operations inproc_operations;
