/* Where ranks are: on which host, and at which index among its ranks. Constant. */
#pragma once
#include "include/tutti.h"

struct places {
    int ranks, hosts, largest;                          /* largest: ranks on the host that has most */
    int host, index, here;                              /* mine, and how many ranks my host has */
    bool even;                                          /* all hosts have as many */
    int *rank_at;                                       /* [hosts][largest] */
};
tutti_status places_init(struct places *places, tutti_comm *comm);     /* places_finish is due in every case */
void places_finish(struct places *places);
static inline int places_rank(const struct places *p, int host, int index)
{
    return p->rank_at[host * p->largest + index];
}
