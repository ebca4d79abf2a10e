/* Keeps plans by key, within a bound, so that a repeated operation finds its plan. The least recently used plan is
 * evicted first. Each communicator has its own cache, which only one thread may use at a time. */
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/schedule/schedule.h"
#include <stddef.h>
#include <stdlib.h>

enum { CACHE_ROWS = 64 };
struct cache_entry {
    struct plan key, plan;
    /* The next entry of the same row. */
    struct cache_entry *next;
    /* Neighbours by time of last use. */
    struct cache_entry *newer, *older;
    size_t bytes;
    void *made;
    /* The masks in_place, then shared, of both `key` and `plan`. */
    uint64_t masks[];
};
struct plan_cache {
    size_t bytes, most;
    plan_release *release;
    void *context;
    struct cache_entry *newest, *oldest;
    struct cache_entry *rows[CACHE_ROWS];
};

static void cache_entry_destroy(struct cache_entry *e)
{
    plan_finish(&e->plan);
    free(e);
}
static bool cache_may_evict(struct plan_cache *cache, const struct cache_entry *e)
{
    return !cache->release || cache->release(cache->context, &e->plan, e->made);
}
struct plan_cache *plan_cache_create(size_t most, plan_release *release, void *context)
{
    struct plan_cache *cache = memory_alloc_zeroed(1, sizeof *cache);
    if (!cache) return NULL;
    cache->most = most;
    cache->release = release;
    cache->context = context;
    return cache;
}
void plan_cache_destroy(struct plan_cache *cache)
{
    for (struct cache_entry *e = cache ? cache->newest : NULL, *older; e; e = older) {
        older = e->older;
        cache_may_evict(cache, e);
        cache_entry_destroy(e);
    }
    free(cache);
}
void plan_cache_set_limit(struct plan_cache *cache, size_t most) { cache->most = most; }
size_t plan_cache_held_bytes(const struct plan_cache *cache) { return cache->bytes; }

/* ---- order of use ---- */
static void cache_unlink_entry(struct plan_cache *cache, struct cache_entry *e)
{
    *(e->newer ? &e->newer->older : &cache->newest) = e->older;
    *(e->older ? &e->older->newer : &cache->oldest) = e->newer;
}
static void cache_set_newest(struct plan_cache *cache, struct cache_entry *e)
{
    e->newer = NULL;
    e->older = cache->newest;
    *(cache->newest ? &cache->newest->newer : &cache->oldest) = e;
    cache->newest = e;
}

/* ---- keys ---- */
static bool plan_keys_are_equal(const struct plan *a, const struct plan *b)
{
    int members = plan_count_members(a);
    return a->algorithm == b->algorithm && a->layout == b->layout && a->root == b->root && a->one_host == b->one_host
        && a->host == b->host && a->one_rank == b->one_rank && a->rank == b->rank && a->slots == b->slots
        && a->stage_inputs == b->stage_inputs && a->reads == b->reads && a->hoist == b->hoist
        && mask_equal(a->in_place, b->in_place, members) && mask_equal(a->shared, b->shared, members);
}
/* Hashes the members in which the operations of one communicator differ. */
static size_t plan_key_row(const struct plan *key)
{
    uint64_t h = (uint64_t)(uintptr_t)key->algorithm / sizeof *key->algorithm;
    h = h * 31 + 2 * (uint64_t)key->root + key->reads;
    for (int w = 0, members = plan_count_members(key); w < mask_words(members); w++) {
        h = h * 31 + mask_word(key->in_place, w, members) % 31;
        h = h * 31 + mask_word(key->shared, w, members) % 31;
    }
    return (size_t)(h % CACHE_ROWS);
}
static struct cache_entry *cache_find_entry(const struct plan_cache *cache, const struct plan *key)
{
    struct cache_entry *e = cache->rows[plan_key_row(key)];
    while (e && !plan_keys_are_equal(&e->key, key)) e = e->next;
    return e;
}
static void cache_evict_entry(struct plan_cache *cache, struct cache_entry *e)
{
    struct cache_entry **at = &cache->rows[plan_key_row(&e->key)];
    while (*at != e) at = &(*at)->next;
    *at = e->next;
    cache_unlink_entry(cache, e);
    cache->bytes -= e->bytes;
    cache_entry_destroy(e);
}
/* Evicts the oldest entries until the bound holds. The newest entry always stays. */
static void cache_evict_oldest(struct plan_cache *cache)
{
    for (struct cache_entry *e = cache->oldest, *newer; cache->bytes > cache->most && e != cache->newest; e = newer) {
        newer = e->newer;
        if (cache_may_evict(cache, e)) cache_evict_entry(cache, e);
    }
}

/* ---- lookup ---- */
static struct cache_entry *cache_entry_create(const struct plan *key)
{
    int members = plan_count_members(key), words = mask_words(members);
    struct cache_entry *e = memory_alloc_zeroed(1, sizeof *e + 2 * (size_t)words * sizeof *e->masks);
    if (!e) return NULL;
    mask_copy(e->masks, key->in_place, members);
    mask_copy(e->masks + words, key->shared, members);
    e->key = *key;
    e->key.in_place = e->masks;
    e->key.shared = e->masks + words;
    e->plan = e->key;
    e->bytes = sizeof *e - sizeof e->plan + 2 * (size_t)words * sizeof *e->masks;
    return e;
}
static void cache_add_entry(struct plan_cache *cache, struct cache_entry *e)
{
    struct cache_entry **row = &cache->rows[plan_key_row(&e->key)];
    e->next = *row;
    *row = e;
    e->bytes += plan_held_bytes(&e->plan);
    cache->bytes += e->bytes;
    cache_set_newest(cache, e);
    cache_evict_oldest(cache);
}
/* The builder changes the plan (staging, unshared ranks), so an entry has a separate key for the lookup. */
tutti_status plan_cache_get(struct plan_cache *cache, const struct plan *key, const struct plan **out)
{
    struct cache_entry *e = cache_find_entry(cache, key);
    if (e) {
        cache_unlink_entry(cache, e);
        cache_set_newest(cache, e);
        *out = &e->plan;
        return TUTTI_OK;
    }
    int ranks = key->layout->ranks;
    e = cache_entry_create(key);
    if (!e) return status_fail(TUTTI_NO_MEMORY, "no memory to plan %s for %d ranks", key->algorithm->name, ranks);
    tutti_status status = plan_build_staging(&e->plan);
    if (status != TUTTI_OK) {
        status_fail(status, "cannot plan %s for %d ranks: %s", key->algorithm->name, ranks, e->plan.error);
        cache_entry_destroy(e);
        return status;
    }
    cache_add_entry(cache, e);
    *out = &e->plan;
    return TUTTI_OK;
}

/* ---- objects made of plans ---- */
static struct cache_entry *cache_entry_of_plan(const struct plan *plan)
{
    return (struct cache_entry *)((uintptr_t)plan - offsetof(struct cache_entry, plan));
}
void *plan_cache_get_made(const struct plan *plan) { return cache_entry_of_plan(plan)->made; }
void plan_cache_attach_made(struct plan_cache *cache, const struct plan *plan, void *made, size_t bytes)
{
    cache_entry_of_plan(plan)->made = made;
    cache_entry_of_plan(plan)->bytes += bytes;
    cache->bytes += bytes;
    cache_evict_oldest(cache);
}
