/* Access of the benchmarks to internals of the library. inside.c does not include cases.h, because both that and the
 * core define names such as ALLREDUCE. */
#pragma once
#include "include/tutti.h"
#include <stdbool.h>
#include <stddef.h>

/* Returns the name of the algorithm number `index` that a group of one host can choose for a collective, or NULL after
   the last one. */
const char *inside_candidate(const char *collective, int index);
/* Writes the choice by which the last call of the collective ran, such as "two_shot 256Kx3", or "messages" if there was
   no choice. */
void inside_choice(const tutti_comm *comm, const char *collective, char *out, size_t capacity);
/* Stops the tuners of this communicator (tuning/tuner.h), so that they try no further candidates, or lets them go on.
   After a stop, an A/B test that runs goes on for a hundred calls. */
void inside_hold(tutti_comm *comm, bool holds);
