/* The order in which units are summed. It is the same on all ranks, whatever order their gradients come in. Pure
   data. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct sum_order {
    int units;
    /* `agreed` has the numbers of the units in the order of their sums. */
    int *agreed;                                        /* [units], owned */
    /* `recorded` has the units in the order in which this rank's gradients of them were complete in the first step. */
    int *recorded;                                      /* [units], owned */
    int recorded_count;
    /* True during the first step. */
    bool is_learning;
};
/* Starts with descending unit numbers, and with learning. Returns false if memory runs out. */
bool sum_order_init(struct sum_order *order, int units);
void sum_order_finish(struct sum_order *order);
/* Records that the gradients of a unit are complete. It has no effect after learning, or if the unit is recorded. */
void sum_order_record(struct sum_order *order, int unit);
/* Ends learning: `agreed` becomes the recorded units, then the others in their old order. */
void sum_order_finish_learning(struct sum_order *order);
