/* Finds ranks that have not made a call which others wait in, and warns about a call that is slow. Driver only. */
#pragma once
#include "include/tutti.h"
#include <stdbool.h>
#include <stddef.h>

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
};
/* Writes the ranks that have not begun the running operation, as "1, 3". It may miss ranks of other hosts. */
void late_ranks_list(const tutti_comm *comm, char *out, size_t bytes);
/* Writes where the programs of late ranks of other processes are, as "; rank 3 is at train.py:19 (step)". All are asked
   at once, and the function waits at most 300 ms for the answers. */
void late_ranks_describe_programs(const tutti_comm *comm, char *out, size_t bytes);
/* Adds the time since the last check to the wait of the running collective. Warns once in a group, if the collective is
   slow: it has waited for TUTTI_SLOW_MS, and ten times as long as predicted, and as the earlier ones on average. A
   driver that waits calls it at least every 20 ms. */
void lateness_check(tutti_comm *comm);
