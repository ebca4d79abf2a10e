/* Each communicator has twice the bytes of the more urgent one before it. So urgent units wait for few bytes. The last
   units wait for many bytes, but those are needed earlier anyway. */
#include "zero/priority_comms.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <stdlib.h>

static tutti_status priority_comms_open(struct priority_comms *l, tutti_comm *from, int color, int key,
    tutti_comm **out, int priority)
{
    TRY(tutti_comm_split(from, color, key, out));
    return tutti_comm_set_priority(*out, l->count - 1 - priority);
}
tutti_status priority_comms_init(struct priority_comms *l, const struct partition *partition,
    const tutti_zero_config *c)
{
    *l = (struct priority_comms){ .count = c->ahead && c->placement != TUTTI_ZERO_SHARDED ? MOST_PRIORITIES : 1 };
    l->of_unit = memory_alloc_zeroed((size_t)partition->units, sizeof *l->of_unit);
    if (!l->of_unit) return status_fail(TUTTI_NO_MEMORY, "zero: no memory for %d units", partition->units);
    for (int i = 0; i < l->count; i++) TRY(priority_comms_open(l, c->comm, 0, partition->rank, &l->all[i], i));
    return TUTTI_OK;
}
tutti_status priority_comms_split_across(struct priority_comms *l, int index, int host)
{
    for (int i = 0; i < l->count; i++) TRY(priority_comms_open(l, l->all[0], index, host, &l->across[i], i));
    return TUTTI_OK;
}
void priority_comms_assign_units(struct priority_comms *l, const struct partition *p, const int *turn)
{
    size_t all = 0, before = 0;
    for (int u = 0; u < p->units; u++) all += partition_bytes(p, u);
    size_t least = all / (((size_t)1 << l->count) - 1), end = least;
    for (int i = p->units - 1, priority = 0; i >= 0; i--) {
        while (before >= end && priority < l->count - 1) end += least << ++priority;
        l->of_unit[turn[i]] = priority;
        before += partition_bytes(p, turn[i]);
    }
}
void priority_comms_abort(struct priority_comms *l)
{
    for (int i = 0; i < l->count; i++) {
        if (l->all[i]) tutti_comm_abort(l->all[i]);
        if (l->across[i]) tutti_comm_abort(l->across[i]);
    }
}
void priority_comms_destroy(struct priority_comms *l)
{
    for (int i = 0; i < l->count; i++) {
        tutti_comm_destroy(l->all[i]);
        tutti_comm_destroy(l->across[i]);
        l->all[i] = l->across[i] = NULL;
    }
}
void priority_comms_finish(struct priority_comms *l)
{
    priority_comms_destroy(l);
    free(l->of_unit);
    l->of_unit = NULL;
}
