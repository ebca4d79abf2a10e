/* Compares the plan that a host builds for its own ranks with the plan of all ranks: all steps must be equal, except
   for the places of chunks in SCRATCH. Also joins the plans of all hosts into one plan of all ranks, which is what
   runs: each host stages inputs to remove cycles without the others. */
#pragma once
#include "tests/unit/schedule/plans.h"
#include <stdlib.h>

static inline bool spans_equal(const struct schedule *a, const struct schedule *b, const struct step *x,
    const struct step *y)
{
    bool equal = x->from_count == y->from_count && x->to_count == y->to_count;
    for (int i = 0; equal && i < x->from_count + x->to_count; i++) {
        struct span m = a->spans[x->span + i], n = b->spans[y->span + i];
        equal = m.rank == n.rank && m.buffer == n.buffer && m.count == n.count
            && (m.first == n.first || m.buffer == SCRATCH);
    }
    return equal;
}
static inline bool steps_equal(const struct schedule *a, const struct schedule *b, int j)
{
    const struct step *x = &a->steps[j], *y = &b->steps[j];
    bool equal = x->kind == y->kind && x->peer == y->peer && x->number == y->number && x->wait_count == y->wait_count
        && x->by_tile == y->by_tile && x->by_reuse == y->by_reuse && x->by_leave == y->by_leave
        && x->finish == y->finish && x->premultiplies == y->premultiplies && spans_equal(a, b, x, y);
    for (int w = 0; equal && w < x->wait_count; w++) {
        struct wait m = a->waits[x->wait + w], n = b->waits[y->wait + w];
        equal = m.rank == n.rank && m.step == n.step && m.lag == n.lag;
    }
    return equal;
}
/* Fails the test unless two schedules of a rank are equal. */
static inline void compare_rank(const struct schedule *a, const struct schedule *b, const char *name)
{
    assert_int_equal(a->step_count, b->step_count);
    assert_int_equal(a->prelude, b->prelude);
    assert_int_equal(a->first_message, b->first_message);
    assert_int_equal(a->last_message, b->last_message);
    for (int j = 0; j < a->step_count; j++)
        if (!steps_equal(a, b, j)) fail_msg("%s: rank %d step %d differs", name, a->rank, j);
}
/* Returns the mask of a host's ranks out of a mask of all ranks. */
static inline const uint64_t *on_host(const uint64_t *mask, const struct layout *l, int host)
{
    uint64_t bits = 0;
    for (int i = 0; i < layout_host_size(l, host); i++) bits |= (uint64_t)mask_has(mask, layout_rank(l, host, i)) << i;
    return mask_of(bits);
}
static inline struct plan host_plan(const struct plan *key, int host)
{
    struct plan p = *key;
    p.one_host = true;
    p.host = host;
    p.in_place = on_host(key->in_place, key->layout, host);
    p.shared = on_host(key->shared, key->layout, host);
    return p;
}
/* Compares the plan of each host with the plan of all ranks, and counts the hosts. Returns false if the plan of all
   ranks cannot be built; then the plan of at least one host cannot be built either. */
static inline bool compare_hosts(const struct plan *key, int *compared)
{
    struct plan all = *key;
    bool built = plan_build(&all) == TUTTI_OK, hosts_built = true;
    for (int h = 0; h < key->layout->hosts; h++, ++*compared) {
        struct plan p = host_plan(key, h);
        hosts_built &= plan_build(&p) == TUTTI_OK;
        for (int m = 0; built && m < p.count; m++)
            compare_rank(&p.ranks[m], plan_schedule_of_rank(&all, plan_rank_of_member(&p, m)), p.algorithm->name);
        plan_finish(&p);
    }
    plan_finish(&all);
    assert_int_equal(hosts_built, built);
    return built;
}
/* The plan of all ranks, joined from the hosts' plans, to which the schedules belong. `cured`: the number of hosts that
   staged inputs to remove a cycle. */
struct assembled { struct plan all, host[MOST_PLACED]; int cured; };
static inline tutti_status assembled_build(struct assembled *x, const struct plan *key)
{
    tutti_status status = TUTTI_OK;
    int scratch = 0;
    x->all = *key;
    x->all.size = x->all.count = key->layout->ranks;
    x->all.ranks = calloc((size_t)x->all.count, sizeof *x->all.ranks);
    x->cured = 0;
    for (int h = 0; h < key->layout->hosts; h++) {
        struct plan *p = &x->host[h];
        *p = host_plan(key, h);
        if (status == TUTTI_OK) status = plan_build_staging(p);
        if (status != TUTTI_OK) {
            snprintf(x->all.error, sizeof x->all.error, "host %d: %.100s", h, p->error);
            continue;
        }
        x->cured += p->unshared != NULL;
        if (p->period > x->all.period) x->all.period = p->period;
        for (int m = 0; m < p->count; m++) x->all.ranks[plan_rank_of_member(p, m)] = p->ranks[m];
        if (p->ranks[0].chunks[SCRATCH] > scratch) scratch = p->ranks[0].chunks[SCRATCH];
    }
    for (int r = 0; r < x->all.count; r++) x->all.ranks[r].chunks[SCRATCH] = scratch;
    return status;
}
static inline void assembled_finish(struct assembled *x)
{
    for (int h = 0; h < x->all.layout->hosts; h++) plan_finish(&x->host[h]);
    free(x->all.ranks);
}
