/* Keeps the mappings of this process in a list. */
#include "backend/memory/common.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/memory/arena.h"
#include "backend/memory/memfd.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct shared_mapping {
    unsigned char token[16];
    /* The number of ranks that have entered it and not left. */
    int users;
    /* NULL until one of them maps the memory. */
    void *base;
    size_t bytes;
    struct shared_mapping *next;
};
static struct shared_mapping *mappings;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void shared_mappings_lock_before_fork(void) { pthread_mutex_lock(&lock); }
static void shared_mappings_unlock_in_parent(void) { pthread_mutex_unlock(&lock); }
/* The child forgets the mappings, because the memory is mapped in the parent only (memory_keep_out_of_children). */
static void shared_mappings_forget_in_child(void)
{
    mappings = NULL;
    pthread_mutex_unlock(&lock);
}
static void shared_mappings_register_fork(void)
{
    arena_prepare();
    pthread_atfork(shared_mappings_lock_before_fork, shared_mappings_unlock_in_parent, shared_mappings_forget_in_child);
}
tutti_status shared_mapping_enter(const unsigned char token[16], struct shared_mapping **out)
{
    pthread_once(&once, shared_mappings_register_fork);
    pthread_mutex_lock(&lock);
    struct shared_mapping *mapping = mappings;
    while (mapping && memcmp(mapping->token, token, sizeof mapping->token) != 0) mapping = mapping->next;
    if (!mapping && (mapping = memory_alloc_zeroed(1, sizeof *mapping)) != NULL) {
        memcpy(mapping->token, token, sizeof mapping->token);
        mapping->next = mappings;
        mappings = mapping;
    }
    if (mapping) mapping->users++;
    pthread_mutex_unlock(&lock);
    *out = mapping;
    return mapping ? TUTTI_OK : status_fail(TUTTI_NO_MEMORY, "no memory for the list of mappings");
}
tutti_status shared_mapping_map(struct shared_mapping *mapping, int descriptor, size_t bytes)
{
    void *base = shared_file_map(descriptor, bytes);
    if (base == MAP_FAILED)
        return status_fail(TUTTI_NO_MEMORY, "mmap of %zu bytes of common memory: %s", bytes, strerror(errno));
    memory_keep_out_of_children(base, bytes);
    pthread_mutex_lock(&lock);
    mapping->base = base;
    mapping->bytes = bytes;
    pthread_mutex_unlock(&lock);
    return TUTTI_OK;
}
void *shared_mapping_base(struct shared_mapping *mapping)
{
    pthread_mutex_lock(&lock);
    void *base = mapping->base;
    pthread_mutex_unlock(&lock);
    return base;
}
/* Drops one user of *link; if it was the last, unlinks the mapping and returns it. The caller holds the lock. */
static struct shared_mapping *shared_mapping_drop_user(struct shared_mapping **link)
{
    struct shared_mapping *mapping = *link;
    if (--mapping->users) return NULL;
    *link = mapping->next;
    return mapping;
}
/* Unmaps the memory, if it is mapped, and frees the entry. NULL is allowed. */
static void shared_mapping_free(struct shared_mapping *mapping)
{
    if (mapping && mapping->base) munmap(mapping->base, mapping->bytes);
    free(mapping);
}
void shared_mapping_leave(struct shared_mapping *mapping)
{
    if (!mapping) return;
    pthread_mutex_lock(&lock);
    struct shared_mapping **link = &mappings, *last = NULL;
    while (*link && *link != mapping) link = &(*link)->next;
    if (*link) last = shared_mapping_drop_user(link);
    pthread_mutex_unlock(&lock);
    shared_mapping_free(last);
}
bool shared_mapping_leave_at(void *base)
{
    pthread_mutex_lock(&lock);
    struct shared_mapping **link = &mappings, *last = NULL;
    while (*link && (*link)->base != base) link = &(*link)->next;
    bool found = base && *link;
    if (found) last = shared_mapping_drop_user(link);
    pthread_mutex_unlock(&lock);
    shared_mapping_free(last);
    return found;
}
