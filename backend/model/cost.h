/* The predicted time of a plan on a machine, in nanoseconds. It follows from the schedules that run. Equal parameters
   and equal questions give bit-identical answers on every rank, so ranks agree only on the parameters and not on each
   choice. */
#pragma once
#include "backend/model/machine.h"
#include "backend/schedule/schedule.h"

/* How a message is cut and run. */
struct cutting {
    /* The bytes of the larger buffer of one rank. */
    size_t message_bytes;
    /* The bytes of that buffer in one tile. At least message_bytes: there is one tile. */
    size_t tile_bytes;
    /* The number of tiles in flight. */
    int slots;
    /* The number of cores that the ranks of one host share. */
    int cores;
};
/* In a plan with messages, TILES_WITH_MESSAGES tiles are in flight, with at most BYTES_WITH_MESSAGES. An algorithm
   stages at most STAGED_AT_MOST times these bytes. The slots of every host have room for that, because all hosts must
   have the same cut. */
enum { TILES_WITH_MESSAGES = 4, BYTES_WITH_MESSAGES = 8 << 20, STAGED_AT_MOST = 6 };
/* Computes the cost in ns of a plan of all ranks, or of the ranks of one host. NO_MEMORY; *out is then untouched. */
tutti_status plan_compute_cost(const struct plan *plan, const struct machine *machine, const struct cutting *cutting,
    double *out);
/* Finds the tile size with the least cost for a message of a plan, and its number of slots. *out gets the cost in
   ns. */
tutti_status plan_choose_tile(const struct plan *plan, const struct machine *machine, size_t message_bytes, int cores,
    struct cutting *best, double *out);
/* Returns the ns of one round in which all ranks of a host see what the others have published, such as the roll
   call. */
double machine_cost_of_round(const struct machine *machine, int ranks, int cores);
/* Returns how many tiles of this size may be in flight: those that fit in the cache, but at least two. With more ranks
   than cores (oversubscribed) it is three, because with two a rank often can only give its core away. */
int machine_tiles_in_flight(const struct machine *machine, size_t tile_bytes, bool oversubscribed);
/* Returns the largest tile size, in bytes, that is considered for plans without messages. */
size_t machine_largest_tile(const struct machine *machine);

/* How long a thread polls before it sleeps: first pauses, then yields. */
struct spin_budget { int pauses, yields; };
/* Returns the spin budget of a thread whose polls take `poll_ns` beside the pause or yield, for example for a system
   call. */
struct spin_budget machine_spin_budget(const struct machine *machine, double poll_ns);
