/* What benchmarks ask of the inside of the library. It stands apart because the core has names of its own for the
 * collectives that cases.h has. */
#pragma once
#include "include/tutti.h"
#include <stdbool.h>
#include <stddef.h>

/* The algorithms that a group of one host chooses from, by the collective's name; NULL after the last. */
const char *inside_candidate(const char *collective, int index);
/* What the last call of the collective ran as, as in "two_shot 256Kx3"; "messages" where there is nothing to say. */
void inside_choice(const tutti_comm *comm, const char *collective, char *out, size_t capacity);
/* From now on nothing else is tried in place of what this communicator has come to (tuning/tuner.h); what is being
   tried goes on for a hundred calls more. Or it is again. */
void inside_hold(tutti_comm *comm, bool holds);
