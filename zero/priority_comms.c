/* Each communicator has twice the bytes of the more urgent one before it. So urgent units wait for few bytes. The last
   units wait for many bytes, but those are needed earlier anyway. */
#include "zero/priority_comms.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <stdlib.h>

/* Splits a communicator from `from` and gives it priority number `priority`, of which 0 is the most urgent. */
static tutti_status priority_comms_open(struct priority_comms *comms, tutti_comm *from, int color, int key,
    tutti_comm **out, int priority)
{
    TRY(tutti_comm_split(from, color, key, out));
    return tutti_comm_set_priority(*out, comms->count - 1 - priority);
}
tutti_status priority_comms_init(struct priority_comms *comms, const struct partition *partition,
    const tutti_zero_config *config)
{
    *comms =
        (struct priority_comms){ .count =
                                     config->ahead && config->placement != TUTTI_ZERO_SHARDED ? MOST_PRIORITIES : 1 };
    comms->of_unit = memory_alloc_zeroed((size_t)partition->units, sizeof *comms->of_unit);
    if (!comms->of_unit) return status_fail(TUTTI_NO_MEMORY, "zero: no memory for %d units", partition->units);
    for (int i = 0; i < comms->count; i++) {
        TRY(priority_comms_open(comms, config->comm, 0, partition->rank, &comms->all[i], i));
        if (config->name) TRY(tutti_comm_set_name(comms->all[i], config->name));
    }
    return TUTTI_OK;
}
tutti_status priority_comms_split_across(struct priority_comms *comms, int index, int host)
{
    for (int i = 0; i < comms->count; i++)
        TRY(priority_comms_open(comms, comms->all[0], index, host, &comms->across[i], i));
    return TUTTI_OK;
}
void priority_comms_assign_units(struct priority_comms *comms, const struct partition *p, const int *agreed)
{
    size_t all = 0, before = 0;
    for (int u = 0; u < p->units; u++) all += partition_unit_bytes(p, u);
    size_t least = all / (((size_t)1 << comms->count) - 1), end = least;
    for (int i = p->units - 1, priority = 0; i >= 0; i--) {
        while (before >= end && priority < comms->count - 1) end += least << ++priority;
        comms->of_unit[agreed[i]] = priority;
        before += partition_unit_bytes(p, agreed[i]);
    }
}
void priority_comms_abort(struct priority_comms *comms)
{
    for (int i = 0; i < comms->count; i++) {
        if (comms->all[i]) tutti_comm_abort(comms->all[i]);
        if (comms->across[i]) tutti_comm_abort(comms->across[i]);
    }
}
void priority_comms_destroy(struct priority_comms *comms)
{
    for (int i = 0; i < comms->count; i++) {
        tutti_comm_destroy(comms->all[i]);
        tutti_comm_destroy(comms->across[i]);
        comms->all[i] = comms->across[i] = NULL;
    }
}
void priority_comms_finish(struct priority_comms *comms)
{
    priority_comms_destroy(comms);
    free(comms->of_unit);
    comms->of_unit = NULL;
}
