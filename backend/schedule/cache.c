/* Plans by key, for as long as the cache lives: an operation that is repeated finds its plan and builds nothing. Not
 * safe for several threads at a time; a communicator has its own. */
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/schedule/schedule.h"
#include <stdlib.h>

enum { CACHE_ROWS = 64 };
struct entry {
    struct plan key, plan;
    struct entry *next;
    uint64_t masks[];                                       /* in_place, then shared, of both */
};
struct cache { struct entry *rows[CACHE_ROWS]; };

struct cache *cache_create(void) { return memory_zeroed(1, sizeof(struct cache)); }
static void entry_destroy(struct entry *e)
{
    if (!e) return;
    plan_finish(&e->plan);
    free(e);
}
void cache_destroy(struct cache *cache)
{
    for (int row = 0; cache && row < CACHE_ROWS; row++)
        for (struct entry *e = cache->rows[row], *next; e; e = next) {
            next = e->next;
            entry_destroy(e);
        }
    free(cache);
}
static bool key_equal(const struct plan *a, const struct plan *b)
{
    int members = plan_members(a);
    return a->algorithm == b->algorithm && a->layout == b->layout && a->root == b->root && a->one_host == b->one_host
        && a->host == b->host && a->slots == b->slots && a->stage_inputs == b->stage_inputs && a->hoist == b->hoist
        && mask_equal(a->in_place, b->in_place, members) && mask_equal(a->shared, b->shared, members);
}
/* What differs between the operations of one communicator. */
static size_t row_of(const struct plan *key)
{
    uint64_t h = (uint64_t)(uintptr_t)key->algorithm / sizeof *key->algorithm;
    h = h * 31 + (uint64_t)key->root;
    for (int w = 0, members = plan_members(key); w < mask_words(members); w++) {
        h = h * 31 + mask_word(key->in_place, w, members) % 31;
        h = h * 31 + mask_word(key->shared, w, members) % 31;
    }
    return (size_t)(h % CACHE_ROWS);
}
static struct entry *entry_create(const struct plan *key)
{
    int members = plan_members(key), words = mask_words(members);
    struct entry *e = memory_zeroed(1, sizeof *e + 2 * (size_t)words * sizeof *e->masks);
    if (!e) return NULL;
    mask_copy(e->masks, key->in_place, members);
    mask_copy(e->masks + words, key->shared, members);
    e->key = *key;
    e->key.in_place = e->masks;
    e->key.shared = e->masks + words;
    e->plan = e->key;
    return e;
}
/* What the builder finds on its way (staging, unshared ranks) must not change what the plan is found by. */
tutti_status cache_plan(struct cache *cache, const struct plan *key, const struct plan **out)
{
    struct entry **row = &cache->rows[row_of(key)];
    for (struct entry *e = *row; e; e = e->next)
        if (key_equal(&e->key, key)) {
            *out = &e->plan;
            return TUTTI_OK;
        }
    int ranks = key->layout->ranks;
    struct entry *e = entry_create(key);
    if (!e) return status_fail(TUTTI_NO_MEMORY, "no memory to plan %s for %d ranks", key->algorithm->name, ranks);
    tutti_status status = plan_build_staging(&e->plan);
    if (status != TUTTI_OK) {
        status_fail(status, "cannot plan %s for %d ranks: %s", key->algorithm->name, ranks, e->plan.error);
        entry_destroy(e);
        return status;
    }
    e->next = *row;
    *row = e;
    *out = &e->plan;
    return TUTTI_OK;
}
