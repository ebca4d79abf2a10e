/* The launcher's interface to tuners: it finds the tuner of a call and the candidate to run, and records times. */
#pragma once
#include "backend/engine/operation.h"
#include "backend/tuning/tuners.h"

/* Finds the tuner of this kind of call. *out is NULL if the call runs as predicted: no tuner serves it, or an algorithm
   is requested. All ranks find tuners in the same order, even ranks that request an algorithm, so they number them the
   same. `bytes` is the message size, equal on all ranks. NO_MEMORY. */
tutti_status tuners_find_for_call(tutti_comm *comm, const struct operation *op, const struct algorithm *requested,
    bool stage_inputs, size_t bytes, struct tuner **out);
/* Returns the code of the candidate that all ranks run in the call that begins, or 0 for the predicted choice. tuner
   may be NULL. The rank that decides for the tuner may first write the code of later calls. */
uint32_t tuner_run_begin(tutti_comm *comm, const struct operation *op, struct tuner *tuner);
/* Records when this rank begins a call, if it is timed or watched. The plan of the call has been made. */
void tuner_run_stamp(tutti_comm *comm);
/* Records the time of a call that has ended, if it was timed or watched, and passes the times of earlier calls to their
   tuners. */
void tuner_run_end(tutti_comm *comm, struct tuner *tuner);
