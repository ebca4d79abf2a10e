/* Backward passes complete units in almost the same order in each step, so the order is learned once. */
#include "zero/order.h"
#include "backend/base/memory.h"
#include <stdlib.h>
#include <string.h>

bool order_init(struct order *o, int units)
{
    *o = (struct order){ .units = units, .learns = true };
    o->turn = memory_zeroed((size_t)units, sizeof *o->turn);
    o->seen = memory_zeroed((size_t)units, sizeof *o->seen);
    for (int i = 0; o->turn && i < units; i++) o->turn[i] = units - 1 - i;
    return o->turn && o->seen;
}
void order_finish(struct order *o)
{
    free(o->turn);
    free(o->seen);
}
static bool was_seen(const struct order *o, int unit)
{
    for (int i = 0; i < o->seen_count; i++)
        if (o->seen[i] == unit) return true;
    return false;
}
void order_record(struct order *o, int unit)
{
    if (o->learns && !was_seen(o, unit)) o->seen[o->seen_count++] = unit;
}
void order_learned(struct order *o)
{
    for (int i = 0; i < o->units; i++) order_record(o, o->turn[i]);
    memcpy(o->turn, o->seen, (size_t)o->units * sizeof *o->turn);
    o->learns = false;
}
