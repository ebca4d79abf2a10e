/* Finds ranks that have not made a call which others wait in, warns about a call that is slow, and counts how long each
   rank of this host was awaited. Driver only. */
#pragma once
#include "include/tutti.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* A rank of this host that was awaited is named if it was late in so many calls. */
enum { LATE_OFTEN = 8 };
/* The room for the places of the programs of some late ranks. */
enum { PLACES_TEXT_BYTES = 384 };
/* How long this rank has waited for another rank of its host, and in how many calls. Other threads read both. */
struct late_rank {
    _Atomic int64_t waited_ms;
    _Atomic uint64_t calls;
    /* The number of the last of these calls. */
    uint64_t last_number;
};

/* How long the collectives of this rank wait. Only a wait that lasts until a check for failures counts, so a short call
   records nothing. */
struct lateness {
    /* The number of the collective that the last check found, how long it had waited, and when the check was. */
    uint64_t number;
    int64_t waited_ms;
    int64_t checked_ms;
    /* The sum of the waits of earlier collectives, without the first ones. */
    int64_t earlier_ms;
    /* The group has had its warning. */
    bool has_warned;
    /* The ranks of this host, by their local ranks; owned. */
    struct late_rank *ranks;
};
/* Initialises a zeroed struct for so many ranks of this host. NO_MEMORY. */
tutti_status lateness_init(struct lateness *lateness, int ranks);
void lateness_finish(struct lateness *lateness);
/* Writes the ranks that have not begun the running operation, as "1, 3". It may miss ranks of other hosts. */
void late_ranks_list(const tutti_comm *comm, char *out, size_t bytes);
/* Writes where the programs of late ranks of other processes are, as "; rank 3 is at train.py:19 (step)". All are asked
   at once, and the function waits at most 300 ms for the answers. */
void late_ranks_describe_programs(const tutti_comm *comm, char *out, size_t bytes);
/* Returns a text for a call in which no rank is known to be late. */
const char *late_ranks_describe_none(const tutti_comm *comm);
/* Adds the time since the last check to the wait of the running collective, and to that for a late rank. Warns once in
   a group, if the collective is slow: a thread has waited in it for TUTTI_SLOW_MS, and ten times as long as predicted,
   and as the earlier ones on average. A driver that waits calls it at least every 20 ms. */
void lateness_check(tutti_comm *comm);
/* Logs, as information, which rank of this host was late most, if it was late often. */
void lateness_log_straggler(const tutti_comm *comm);
