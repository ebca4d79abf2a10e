/* What a plan costs on a machine, in nanoseconds: predicted from the schedules themselves, which are what runs. The
   same parameters and the same question give the same answer to the bit on every rank, so ranks that have agreed on the
   parameters need not talk about what follows from them. */
#pragma once
#include "backend/model/machine.h"
#include "backend/schedule/schedule.h"

struct cutting {                                        /* how a message is worked on */
    size_t message_bytes;                               /* of one rank, its larger buffer */
    size_t tile_bytes;                                  /* of the message; the whole of it: one tile */
    int slots;                                          /* tiles in flight */
    int cores;                                          /* that the ranks of the host share */
};
/* Of a plan with messages: so many tiles are in flight, and so many bytes at most. No algorithm stages more than so
   many times as much; there is room for that in the slots of every host, for all hosts must cut alike. */
enum { TILES_WITH_MESSAGES = 4, BYTES_WITH_MESSAGES = 8 << 20, STAGED_AT_MOST = 6 };
/* A plan of all ranks, or of those of one host. `cores` are those of one host. NO_MEMORY, and then *out is
   untouched. */
tutti_status price_plan(const struct plan *plan, const struct machine *machine, const struct cutting *cutting,
    double *out);
/* The tile size of the least price for so many bytes, and with how many slots. */
tutti_status price_tile(const struct plan *plan, const struct machine *machine, size_t message_bytes, int cores,
    struct cutting *best, double *out);
/* One round more, such as a look around before the first step. */
double price_round(const struct machine *machine, int ranks, int cores);
/* Tiles of so many bytes that may be in flight at a time: two, or as many as fit in the cache. When
   oversubscribed (more ranks than cores) three: with two a rank often has nothing to do but to give its core away. */
int price_slots(const struct machine *machine, size_t tile_bytes, bool oversubscribed);
size_t price_largest_tile(const struct machine *machine);

/* How long to wait awake: so many pauses, then so many yields, then it is cheaper to have slept. */
struct spin_budget { int pauses, yields; };
/* look: ns that a look takes beside the pause: at a network, a system call. */
struct spin_budget price_spin_budget(const struct machine *machine, double look);
