/* The launcher's interface to trials: which trial a call belongs to, which candidate it runs, and how long it took. */
#pragma once
#include "backend/engine/operation.h"
#include "backend/engine/tuner.h"

/* Follows TUTTI_TRIALS. `crowded`: ranks share cores, so a time depends more on the other ranks than on the choice. */
void tuners_init(struct tuners *trials, struct tuning *tuning, bool crowded);
/* Finds the trial of this kind of call. *out is NULL if the call runs as predicted. All ranks find trials in the same
   order, even ranks that ask for an algorithm, so they number them the same. `bytes` is the message size, equal on all
   ranks. NO_MEMORY. */
tutti_status tuners_find_for_call(tutti_comm *comm, const struct operation *op, const struct algorithm *asked,
    bool stage_inputs, size_t bytes, struct tuner **out);
/* Returns the candidate's code that all ranks run in the call that begins, or 0. The decider may first write what later
   calls run. */
uint32_t tuner_run_begin(tutti_comm *comm, const struct operation *op, struct tuner *trial);
/* Records the times of a call that has ended. */
void tuner_run_end(tutti_comm *comm, struct tuner *trial);
/* Replaces the predicted choice by the candidate. `open`: private tensors can be read. False: the choice stays. */
bool choice_take_candidate(uint32_t code, bool open, struct choice *choice);
