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
struct cache {
    size_t bytes, most;
    plan_release *release;
    void *context;
    struct cache_entry *newest, *oldest;
    struct cache_entry *rows[CACHE_ROWS];
};

static void entry_destroy(struct cache_entry *e)
{
    plan_finish(&e->plan);
    free(e);
}
static bool may_go(struct cache *cache, const struct cache_entry *e)
{
    return !cache->release || cache->release(cache->context, &e->plan, e->made);
}
struct cache *cache_create(size_t most, plan_release *release, void *context)
{
    struct cache *cache = memory_zeroed(1, sizeof *cache);
    if (!cache) return NULL;
    cache->most = most;
    cache->release = release;
    cache->context = context;
    return cache;
}
void cache_destroy(struct cache *cache)
{
    for (struct cache_entry *e = cache ? cache->newest : NULL, *older; e; e = older) {
        older = e->older;
        may_go(cache, e);
        entry_destroy(e);
    }
    free(cache);
}
void cache_limit(struct cache *cache, size_t most) { cache->most = most; }
size_t cache_held(const struct cache *cache) { return cache->bytes; }

/* ---- order of use ---- */
static void unlink_age(struct cache *cache, struct cache_entry *e)
{
    *(e->newer ? &e->newer->older : &cache->newest) = e->older;
    *(e->older ? &e->older->newer : &cache->oldest) = e->newer;
}
static void make_newest(struct cache *cache, struct cache_entry *e)
{
    e->newer = NULL;
    e->older = cache->newest;
    *(cache->newest ? &cache->newest->newer : &cache->oldest) = e;
    cache->newest = e;
}

/* ---- keys ---- */
static bool key_equal(const struct plan *a, const struct plan *b)
{
    int members = plan_members(a);
    return a->algorithm == b->algorithm && a->layout == b->layout && a->root == b->root && a->one_host == b->one_host
        && a->host == b->host && a->one_rank == b->one_rank && a->rank == b->rank && a->slots == b->slots
        && a->stage_inputs == b->stage_inputs && a->reads == b->reads && a->hoist == b->hoist
        && mask_equal(a->in_place, b->in_place, members) && mask_equal(a->shared, b->shared, members);
}
/* Hashes the members in which the operations of one communicator differ. */
static size_t row_of(const struct plan *key)
{
    uint64_t h = (uint64_t)(uintptr_t)key->algorithm / sizeof *key->algorithm;
    h = h * 31 + 2 * (uint64_t)key->root + key->reads;
    for (int w = 0, members = plan_members(key); w < mask_words(members); w++) {
        h = h * 31 + mask_word(key->in_place, w, members) % 31;
        h = h * 31 + mask_word(key->shared, w, members) % 31;
    }
    return (size_t)(h % CACHE_ROWS);
}
static struct cache_entry *entry_find(const struct cache *cache, const struct plan *key)
{
    struct cache_entry *e = cache->rows[row_of(key)];
    while (e && !key_equal(&e->key, key)) e = e->next;
    return e;
}
static void entry_evict(struct cache *cache, struct cache_entry *e)
{
    struct cache_entry **at = &cache->rows[row_of(&e->key)];
    while (*at != e) at = &(*at)->next;
    *at = e->next;
    unlink_age(cache, e);
    cache->bytes -= e->bytes;
    entry_destroy(e);
}
/* Evicts the oldest entries until the bound holds. The newest entry always stays. */
static void make_room(struct cache *cache)
{
    for (struct cache_entry *e = cache->oldest, *newer; cache->bytes > cache->most && e != cache->newest; e = newer) {
        newer = e->newer;
        if (may_go(cache, e)) entry_evict(cache, e);
    }
}

/* ---- lookup ---- */
static struct cache_entry *entry_create(const struct plan *key)
{
    int members = plan_members(key), words = mask_words(members);
    struct cache_entry *e = memory_zeroed(1, sizeof *e + 2 * (size_t)words * sizeof *e->masks);
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
static void entry_add(struct cache *cache, struct cache_entry *e)
{
    struct cache_entry **row = &cache->rows[row_of(&e->key)];
    e->next = *row;
    *row = e;
    e->bytes += plan_bytes(&e->plan);
    cache->bytes += e->bytes;
    make_newest(cache, e);
    make_room(cache);
}
/* The builder changes the plan (staging, unshared ranks), so an entry has a separate key for the lookup. */
tutti_status cache_plan(struct cache *cache, const struct plan *key, const struct plan **out)
{
    struct cache_entry *e = entry_find(cache, key);
    if (e) {
        unlink_age(cache, e);
        make_newest(cache, e);
        *out = &e->plan;
        return TUTTI_OK;
    }
    int ranks = key->layout->ranks;
    e = entry_create(key);
    if (!e) return status_fail(TUTTI_NO_MEMORY, "no memory to plan %s for %d ranks", key->algorithm->name, ranks);
    tutti_status status = plan_build_staging(&e->plan);
    if (status != TUTTI_OK) {
        status_fail(status, "cannot plan %s for %d ranks: %s", key->algorithm->name, ranks, e->plan.error);
        entry_destroy(e);
        return status;
    }
    entry_add(cache, e);
    *out = &e->plan;
    return TUTTI_OK;
}

/* ---- objects made of plans ---- */
static struct cache_entry *entry_of(const struct plan *plan)
{
    return (struct cache_entry *)((uintptr_t)plan - offsetof(struct cache_entry, plan));
}
void *cache_made(const struct plan *plan) { return entry_of(plan)->made; }
void cache_attach(struct cache *cache, const struct plan *plan, void *made, size_t bytes)
{
    entry_of(plan)->made = made;
    entry_of(plan)->bytes += bytes;
    cache->bytes += bytes;
    make_room(cache);
}
