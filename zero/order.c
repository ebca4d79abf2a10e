/* Backward passes complete units in almost the same order in each step, so the order is learned once. */
#include "zero/order.h"
#include "backend/base/memory.h"
#include <stdlib.h>
#include <string.h>

bool sum_order_init(struct sum_order *o, int units)
{
    *o = (struct sum_order){ .units = units, .learns = true };
    o->turn = memory_alloc_zeroed((size_t)units, sizeof *o->turn);
    o->seen = memory_alloc_zeroed((size_t)units, sizeof *o->seen);
    for (int i = 0; o->turn && i < units; i++) o->turn[i] = units - 1 - i;
    return o->turn && o->seen;
}
void sum_order_finish(struct sum_order *o)
{
    free(o->turn);
    free(o->seen);
}
static bool sum_order_has_seen(const struct sum_order *o, int unit)
{
    for (int i = 0; i < o->seen_count; i++)
        if (o->seen[i] == unit) return true;
    return false;
}
void sum_order_record(struct sum_order *o, int unit)
{
    if (o->learns && !sum_order_has_seen(o, unit)) o->seen[o->seen_count++] = unit;
}
void sum_order_finish_learning(struct sum_order *o)
{
    for (int i = 0; i < o->units; i++) sum_order_record(o, o->turn[i]);
    memcpy(o->turn, o->seen, (size_t)o->units * sizeof *o->turn);
    o->learns = false;
}
