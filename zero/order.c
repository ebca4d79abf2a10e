/* Backward passes complete units in almost the same order in each step, so the order is learned once. */
#include "zero/order.h"
#include "backend/base/memory.h"
#include <stdlib.h>
#include <string.h>

bool sum_order_init(struct sum_order *o, int units)
{
    *o = (struct sum_order){ .units = units, .is_learning = true };
    o->agreed = memory_alloc_zeroed((size_t)units, sizeof *o->agreed);
    o->recorded = memory_alloc_zeroed((size_t)units, sizeof *o->recorded);
    for (int i = 0; o->agreed && i < units; i++) o->agreed[i] = units - 1 - i;
    return o->agreed && o->recorded;
}
void sum_order_finish(struct sum_order *o)
{
    free(o->agreed);
    free(o->recorded);
}
static bool sum_order_has_recorded(const struct sum_order *o, int unit)
{
    for (int i = 0; i < o->recorded_count; i++)
        if (o->recorded[i] == unit) return true;
    return false;
}
void sum_order_record(struct sum_order *o, int unit)
{
    if (o->is_learning && !sum_order_has_recorded(o, unit)) o->recorded[o->recorded_count++] = unit;
}
void sum_order_finish_learning(struct sum_order *o)
{
    for (int i = 0; i < o->units; i++) sum_order_record(o, o->agreed[i]);
    memcpy(o->agreed, o->recorded, (size_t)o->units * sizeof *o->agreed);
    o->is_learning = false;
}
