/* Keeps plans by key, within a bound, so that a repeated operation finds its plan. The least recently used plan is
 * evicted first. Each communicator has its own cache, which only one thread may use at a time. */
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/schedule/schedule.h"
#include <stddef.h>
#include <stdlib.h>

enum { CACHE_ROWS = 64 };
struct cache_entry {
    /* key: the plan as its caller asked for it; plan: the same, built. */
    struct plan key, plan;
    /* The next entry of the same row. */
    struct cache_entry *next;
    /* Neighbours by time of last use. */
    struct cache_entry *newer, *older;
    /* The memory of the entry and of `made`. */
    size_t bytes;
    /* The object that the owner of the cache made of the plan, or NULL. */
    void *made;
    /* The masks in_place, then shared, of both `key` and `plan`. */
    uint64_t masks[];
};
struct plan_cache {
    /* The bytes of all entries, and their bound. */
    size_t bytes, max_bytes;
    plan_release *release;
    void *context;
    /* The ends of the list by last use. */
    struct cache_entry *newest, *oldest;
    /* A hash table of keys. */
    struct cache_entry *rows[CACHE_ROWS];
};

static void cache_entry_destroy(struct cache_entry *entry)
{
    plan_finish(&entry->plan);
    free(entry);
}
/* Asks the owner to free the object that it made of the entry's plan. False: the owner refuses, so the entry must
   stay. */
static bool cache_try_release(struct plan_cache *cache, const struct cache_entry *entry)
{
    return !cache->release || cache->release(cache->context, &entry->plan, entry->made);
}
struct plan_cache *plan_cache_create(size_t max_bytes, plan_release *release, void *context)
{
    struct plan_cache *cache = memory_alloc_zeroed(1, sizeof *cache);
    if (!cache) return NULL;
    cache->max_bytes = max_bytes;
    cache->release = release;
    cache->context = context;
    return cache;
}
void plan_cache_destroy(struct plan_cache *cache)
{
    for (struct cache_entry *entry = cache ? cache->newest : NULL, *older; entry; entry = older) {
        older = entry->older;
        /* The owner frees its object, and must not refuse now. */
        (void)cache_try_release(cache, entry);
        cache_entry_destroy(entry);
    }
    free(cache);
}
void plan_cache_set_limit(struct plan_cache *cache, size_t max_bytes) { cache->max_bytes = max_bytes; }
size_t plan_cache_held_bytes(const struct plan_cache *cache) { return cache->bytes; }

/* ---- order of use ---- */
/* Removes an entry from the list by last use. */
static void cache_unlink_entry(struct plan_cache *cache, struct cache_entry *entry)
{
    *(entry->newer ? &entry->newer->older : &cache->newest) = entry->older;
    *(entry->older ? &entry->older->newer : &cache->oldest) = entry->newer;
}
/* Adds an entry, which is in no list, as the one used last. */
static void cache_set_newest(struct plan_cache *cache, struct cache_entry *entry)
{
    entry->newer = NULL;
    entry->older = cache->newest;
    *(cache->newest ? &cache->newest->newer : &cache->oldest) = entry;
    cache->newest = entry;
}

/* ---- keys ---- */
/* True if both keys ask for the same plan: they agree in all that the caller of plan_build fills, but stage_sends. */
static bool plan_keys_are_equal(const struct plan *a, const struct plan *b)
{
    int members = plan_count_members(a);
    return a->algorithm == b->algorithm && a->layout == b->layout && a->root == b->root && a->one_host == b->one_host
        && a->host == b->host && a->one_rank == b->one_rank && a->rank == b->rank && a->slots == b->slots
        && a->stage_inputs == b->stage_inputs && a->can_read_private == b->can_read_private
        && a->hoists_receives == b->hoists_receives && mask_equal(a->in_place, b->in_place, members)
        && mask_equal(a->shared, b->shared, members);
}
/* Hashes a key to a row of the table, by the fields in which the operations of one communicator differ. */
static size_t plan_key_row(const struct plan *key)
{
    uint64_t hash = (uint64_t)(uintptr_t)key->algorithm / sizeof *key->algorithm;
    hash = hash * 31 + 2 * (uint64_t)key->root + key->can_read_private;
    for (int w = 0, members = plan_count_members(key); w < mask_words(members); w++) {
        hash = hash * 31 + mask_word(key->in_place, w, members) % 31;
        hash = hash * 31 + mask_word(key->shared, w, members) % 31;
    }
    return (size_t)(hash % CACHE_ROWS);
}
/* Returns the entry of an equal key, or NULL. */
static struct cache_entry *cache_find_entry(const struct plan_cache *cache, const struct plan *key)
{
    struct cache_entry *entry = cache->rows[plan_key_row(key)];
    while (entry && !plan_keys_are_equal(&entry->key, key)) entry = entry->next;
    return entry;
}
/* Removes and frees an entry, whose object the owner has released. */
static void cache_evict_entry(struct plan_cache *cache, struct cache_entry *entry)
{
    struct cache_entry **at = &cache->rows[plan_key_row(&entry->key)];
    while (*at != entry) at = &(*at)->next;
    *at = entry->next;
    cache_unlink_entry(cache, entry);
    cache->bytes -= entry->bytes;
    cache_entry_destroy(entry);
}
/* Evicts the least recently used entries that the owner releases, until the bound holds. The newest entry always
   stays. */
static void cache_evict_oldest(struct plan_cache *cache)
{
    for (struct cache_entry *entry = cache->oldest, *newer; cache->bytes > cache->max_bytes && entry != cache->newest;
        entry = newer) {
        newer = entry->newer;
        if (cache_try_release(cache, entry)) cache_evict_entry(cache, entry);
    }
}

/* ---- lookup ---- */
/* Creates an entry for a key, without a plan. NULL: no memory. */
static struct cache_entry *cache_entry_create(const struct plan *key)
{
    int members = plan_count_members(key), words = mask_words(members);
    struct cache_entry *entry = memory_alloc_zeroed(1, sizeof *entry + 2 * (size_t)words * sizeof *entry->masks);
    if (!entry) return NULL;
    mask_copy(entry->masks, key->in_place, members);
    mask_copy(entry->masks + words, key->shared, members);
    entry->key = *key;
    entry->key.in_place = entry->masks;
    entry->key.shared = entry->masks + words;
    entry->plan = entry->key;
    entry->bytes = sizeof *entry - sizeof entry->plan + 2 * (size_t)words * sizeof *entry->masks;
    return entry;
}
/* Adds an entry as the newest, and evicts the oldest ones above the cache's limit of bytes. */
static void cache_add_entry(struct plan_cache *cache, struct cache_entry *entry)
{
    struct cache_entry **row = &cache->rows[plan_key_row(&entry->key)];
    entry->next = *row;
    *row = entry;
    entry->bytes += plan_held_bytes(&entry->plan);
    cache->bytes += entry->bytes;
    cache_set_newest(cache, entry);
    cache_evict_oldest(cache);
}
/* Returns the plan of the key from the cache, or builds and adds it. The builder changes the plan (staging, unshared
   ranks), so an entry has a separate key for the lookup. */
tutti_status plan_cache_get(struct plan_cache *cache, const struct plan *key, const struct plan **out)
{
    struct cache_entry *entry = cache_find_entry(cache, key);
    if (entry) {
        cache_unlink_entry(cache, entry);
        cache_set_newest(cache, entry);
        *out = &entry->plan;
        return TUTTI_OK;
    }
    int ranks = key->layout->ranks;
    entry = cache_entry_create(key);
    if (!entry) return status_fail(TUTTI_NO_MEMORY, "no memory to plan %s for %d ranks", key->algorithm->name, ranks);
    tutti_status status = plan_build_staging(&entry->plan);
    if (status != TUTTI_OK) {
        status_fail(status, "cannot plan %s for %d ranks: %s", key->algorithm->name, ranks, entry->plan.error);
        cache_entry_destroy(entry);
        return status;
    }
    cache_add_entry(cache, entry);
    *out = &entry->plan;
    return TUTTI_OK;
}

/* ---- objects made of plans ---- */
/* Returns the entry that contains a plan of the cache. */
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
