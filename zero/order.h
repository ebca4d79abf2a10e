/* Decides the order in which units are summed. It is the same on all ranks, whatever order their gradients come in.
   Pure data. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct sum_order {
    int units;
    /* `turn` has the units in the agreed order. */
    int *turn;                                          /* [units], owned */
    /* `seen` has the units in the order in which they were complete on this rank. */
    int *seen;                                          /* [units], owned */
    int seen_count;
    /* True during the first step. */
    bool learns;
};
/* Starts with the reverse of the units' numbers. Returns false if memory runs out. */
bool sum_order_init(struct sum_order *order, int units);
void sum_order_finish(struct sum_order *order);
/* Records, while the order is learned, that a unit is complete. Later records of the unit change nothing. */
void sum_order_record(struct sum_order *order, int unit);
/* Ends learning. The order becomes the recorded units, then the others in their old order. */
void sum_order_finish_learning(struct sum_order *order);
