/* The predicted time of a plan on a machine, in nanoseconds. It follows from the schedules that run. Equal parameters
   and equal questions give bit-identical answers on every rank, so ranks agree only on the parameters and not on each
   choice. */
#pragma once
#include "backend/model/machine.h"
#include "backend/schedule/schedule.h"

/* How a message is cut and run. */
struct cutting {
    /* The larger buffer of one rank. */
    size_t message_bytes;
    /* At least message_bytes: one tile. */
    size_t tile_bytes;
    /* Tiles in flight. */
    int slots;
    /* The cores that the ranks of one host share. */
    int cores;
};
/* In a plan with messages, TILES_WITH_MESSAGES tiles are in flight, with at most BYTES_WITH_MESSAGES. An algorithm
   stages at most STAGED_AT_MOST times these bytes. The slots of every host have room for that, because all hosts must
   have the same cut. */
enum { TILES_WITH_MESSAGES = 4, BYTES_WITH_MESSAGES = 8 << 20, STAGED_AT_MOST = 6 };
/* Computes the cost of a plan of all ranks, or of the ranks of one host. NO_MEMORY; *out is then untouched. */
tutti_status plan_compute_cost(const struct plan *plan, const struct machine *machine, const struct cutting *cutting,
    double *out);
/* Finds the tile size with the least cost for a message, and its number of slots. */
tutti_status plan_choose_tile(const struct plan *plan, const struct machine *machine, size_t message_bytes, int cores,
    struct cutting *best, double *out);
/* Computes the cost of one more round, for example the roll call before a late selection. */
double machine_cost_of_round(const struct machine *machine, int ranks, int cores);
/* Returns how many tiles of this size may be in flight: those that fit in the cache, but at least two. With more ranks
   than cores (oversubscribed) it is three, because with two a rank often can only give its core away. */
int machine_tiles_in_flight(const struct machine *machine, size_t tile_bytes, bool oversubscribed);
size_t machine_largest_tile(const struct machine *machine);

/* How long a thread polls before it sleeps: first pauses, then yields. */
struct spin_budget { int pauses, yields; };
/* `look`: ns that a poll takes beside the pause, for example a system call for a network. */
struct spin_budget machine_spin_budget(const struct machine *machine, double look);
