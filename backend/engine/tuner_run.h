/* The launcher's interface to tuners: which tuner a call belongs to, which candidate it runs, and how long it took. */
#pragma once
#include "backend/engine/operation.h"
#include "backend/tuning/tuner.h"

/* Finds the tuner of this kind of call. *out is NULL if the call runs as predicted. All ranks find tuners in the same
   order, even ranks that ask for an algorithm, so they number them the same. `bytes` is the message size, equal on all
   ranks. NO_MEMORY. */
tutti_status tuners_find_for_call(tutti_comm *comm, const struct operation *op, const struct algorithm *asked,
    bool stage_inputs, size_t bytes, struct tuner **out);
/* Returns the candidate's code that all ranks run in the call that begins, or 0. The decider may first write what later
   calls run. */
uint32_t tuner_run_begin(tutti_comm *comm, const struct operation *op, struct tuner *tuner);
/* Records the times of a call that has ended. */
void tuner_run_end(tutti_comm *comm, struct tuner *tuner);
