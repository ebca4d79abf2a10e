/* What the launcher has to do with trials: which calls they are of, what runs in them, how long they took. */
#pragma once
#include "backend/engine/operation.h"
#include "backend/engine/trials.h"

/* As the settings say; crowded: ranks share cores, and then a time says more about the others. */
void trying_init(struct trials *trials, struct tuning *tuning, bool crowded);
/* The trial of calls like this; *out is NULL if what is priced runs. All ranks find them in the same order, even those
   that ask for an algorithm, so they number them alike. bytes: of the message, as ranks know them alike. NO_MEMORY. */
tutti_status trying_find(tutti_comm *comm, const struct operation *op, const struct algorithm *asked, bool stage_inputs,
    size_t bytes, struct trial **out);
/* What all ranks try in the call that begins, or 0; the decider may first say what comes next. */
uint32_t trying_begin(tutti_comm *comm, const struct operation *op, struct trial *trial);
void trying_end(tutti_comm *comm, struct trial *trial);                 /* it is over */
/* Puts what is tried in the place of what is priced; open: private tensors can be read. False: nothing is. */
bool trying_take(uint32_t code, bool open, struct choice *choice);
