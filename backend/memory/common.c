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

struct common {
    unsigned char token[16];
    int users;
    void *base;
    size_t bytes;
    struct common *next;
};
static struct common *all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&lock); }
/* The mappings stay in the parent (see memfd_keep_out), so the child forgets them. */
static void after_fork_in_child(void)
{
    all = NULL;
    pthread_mutex_unlock(&lock);
}
static void fork_prepare(void)
{
    arena_prepare();
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}
tutti_status common_enter(const unsigned char token[16], struct common **out)
{
    pthread_once(&once, fork_prepare);
    pthread_mutex_lock(&lock);
    struct common *c = all;
    while (c && memcmp(c->token, token, sizeof c->token) != 0) c = c->next;
    if (!c && (c = memory_zeroed(1, sizeof *c)) != NULL) {
        memcpy(c->token, token, sizeof c->token);
        c->next = all;
        all = c;
    }
    if (c) c->users++;
    pthread_mutex_unlock(&lock);
    *out = c;
    return c ? TUTTI_OK : status_fail(TUTTI_NO_MEMORY, "no memory for the list of mappings");
}
tutti_status common_map(struct common *c, int descriptor, size_t bytes)
{
    void *base = arena_map(descriptor, bytes);
    if (base == MAP_FAILED)
        return status_fail(TUTTI_NO_MEMORY, "mmap of %zu bytes of common memory: %s", bytes, strerror(errno));
    memfd_keep_out(base, bytes);
    pthread_mutex_lock(&lock);
    c->base = base;
    c->bytes = bytes;
    pthread_mutex_unlock(&lock);
    return TUTTI_OK;
}
void *common_base(struct common *c)
{
    pthread_mutex_lock(&lock);
    void *base = c->base;
    pthread_mutex_unlock(&lock);
    return base;
}
/* Drops one user of *link; if it was the last, unlinks the mapping and returns it. The caller holds the lock. */
static struct common *common_unlink(struct common **link)
{
    struct common *c = *link;
    if (--c->users) return NULL;
    *link = c->next;
    return c;
}
static void common_unmake(struct common *c)
{
    if (c && c->base) munmap(c->base, c->bytes);
    free(c);
}
void common_leave(struct common *common)
{
    if (!common) return;
    pthread_mutex_lock(&lock);
    struct common **link = &all, *last = NULL;
    while (*link && *link != common) link = &(*link)->next;
    if (*link) last = common_unlink(link);
    pthread_mutex_unlock(&lock);
    common_unmake(last);
}
bool common_leave_at(void *base)
{
    pthread_mutex_lock(&lock);
    struct common **link = &all, *last = NULL;
    while (*link && (*link)->base != base) link = &(*link)->next;
    bool found = base && *link;
    if (found) last = common_unlink(link);
    pthread_mutex_unlock(&lock);
    common_unmake(last);
    return found;
}
