/* The table of all algorithms, made from the list in table.h, and lookups in it by name. */
#include "backend/collectives/table.h"
#include <assert.h>
#include <string.h>

const struct algorithm collectives_table[] = {
#define X(collective_, name_, function_, flags_) \
    { .name = #name_, .collective = collective_, .record = function_, .host_memory = ((flags_) & HOST_MEMORY) != 0, \
      .hierarchical = ((flags_) & HIERARCHICAL) != 0, .stage_in_place = ((flags_) & STAGE_IN_PLACE) != 0,           \
      .equal_chunks = ((flags_) & EQUAL_CHUNKS) != 0, .few_hosts = ((flags_) & FEW_HOSTS) != 0 },
    COLLECTIVES_TABLE(X)
#undef X
        { .name = NULL },
};

const char *collective_name(enum collective collective)
{
    static const char *const names[COLLECTIVE_COUNT] = {
        [ALLREDUCE] = "allreduce",
        [REDUCE] = "reduce",
        [BROADCAST] = "broadcast",
        [ALLGATHER] = "allgather",
        [ALL_TO_ALL] = "all_to_all",
        [REDUCE_SCATTER] = "reduce_scatter",
        [GATHER] = "gather",
        [SCATTER] = "scatter",
        [BARRIER] = "barrier",
    };
    assert(collective < COLLECTIVE_COUNT);
    return names[collective];
}
const struct algorithm *collectives_find_algorithm(enum collective collective, const char *name)
{
    for (const struct algorithm *algorithm = collectives_table; algorithm->name; algorithm++)
        if (algorithm->collective == collective && strcmp(algorithm->name, name) == 0) return algorithm;
    return NULL;
}
