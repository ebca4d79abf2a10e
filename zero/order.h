/* In which order units are summed: the same on all ranks, whatever order their gradients come in. Pure data. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct order {
    int units;
    int *turn;                                          /* [units] the units, in the order agreed on */
    int *seen;                                          /* [units] in the order in which they were complete here */
    int seen_count;
    bool learns;                                        /* the first step */
};
bool order_init(struct order *order, int units);        /* the reverse of their numbers; false: no memory */
void order_finish(struct order *order);
void order_record(struct order *order, int unit);         /* complete, once for each unit while it learns */
/* All units: those seen, then the rest as they were. It learns no more. */
void order_learned(struct order *order);
