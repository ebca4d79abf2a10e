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
    int users;
    void *base;
    size_t bytes;
    struct shared_mapping *next;
};
static struct shared_mapping *all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void shared_mappings_lock_before_fork(void) { pthread_mutex_lock(&lock); }
static void shared_mappings_unlock_in_parent(void) { pthread_mutex_unlock(&lock); }
/* The mappings stay in the parent (see memory_keep_out_of_children), so the child forgets them. */
static void shared_mappings_forget_in_child(void)
{
    all = NULL;
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
    struct shared_mapping *c = all;
    while (c && memcmp(c->token, token, sizeof c->token) != 0) c = c->next;
    if (!c && (c = memory_alloc_zeroed(1, sizeof *c)) != NULL) {
        memcpy(c->token, token, sizeof c->token);
        c->next = all;
        all = c;
    }
    if (c) c->users++;
    pthread_mutex_unlock(&lock);
    *out = c;
    return c ? TUTTI_OK : status_fail(TUTTI_NO_MEMORY, "no memory for the list of mappings");
}
tutti_status shared_mapping_map(struct shared_mapping *c, int descriptor, size_t bytes)
{
    void *base = arena_map(descriptor, bytes);
    if (base == MAP_FAILED)
        return status_fail(TUTTI_NO_MEMORY, "mmap of %zu bytes of common memory: %s", bytes, strerror(errno));
    memory_keep_out_of_children(base, bytes);
    pthread_mutex_lock(&lock);
    c->base = base;
    c->bytes = bytes;
    pthread_mutex_unlock(&lock);
    return TUTTI_OK;
}
void *shared_mapping_base(struct shared_mapping *c)
{
    pthread_mutex_lock(&lock);
    void *base = c->base;
    pthread_mutex_unlock(&lock);
    return base;
}
/* Drops one user of *link; if it was the last, unlinks the mapping and returns it. The caller holds the lock. */
static struct shared_mapping *shared_mapping_unlink(struct shared_mapping **link)
{
    struct shared_mapping *c = *link;
    if (--c->users) return NULL;
    *link = c->next;
    return c;
}
static void shared_mapping_free(struct shared_mapping *c)
{
    if (c && c->base) munmap(c->base, c->bytes);
    free(c);
}
void shared_mapping_leave(struct shared_mapping *common)
{
    if (!common) return;
    pthread_mutex_lock(&lock);
    struct shared_mapping **link = &all, *last = NULL;
    while (*link && *link != common) link = &(*link)->next;
    if (*link) last = shared_mapping_unlink(link);
    pthread_mutex_unlock(&lock);
    shared_mapping_free(last);
}
bool shared_mapping_leave_at(void *base)
{
    pthread_mutex_lock(&lock);
    struct shared_mapping **link = &all, *last = NULL;
    while (*link && (*link)->base != base) link = &(*link)->next;
    bool found = base && *link;
    if (found) last = shared_mapping_unlink(link);
    pthread_mutex_unlock(&lock);
    shared_mapping_free(last);
    return found;
}
