/* A list of the segments that this process has mapped, by the token of their group. One rank of the process creates or
   receives a segment: the first rank of the shm group that is in this process. Its other ranks wait for it. */
#include "backend/join/mapping.h"
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SLICE_MS = 50, FAILURES = 16 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Signals the result of a mapping or a failure. Its timed waits use the monotonic clock. */
static pthread_cond_t changed;
static struct mapping *mappings;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A child begins without segments, because it is not a member of its parent's groups. */
static void mappings_before_fork(void) { pthread_mutex_lock(&lock); }
static void mappings_after_fork_parent(void) { pthread_mutex_unlock(&lock); }
static void mappings_after_fork_child(void)
{
    mappings = NULL;
    clock_condition_init(&changed);
    pthread_mutex_unlock(&lock);
}
static void mappings_prepare_fork(void)
{
    clock_condition_init(&changed);
    pthread_atfork(mappings_before_fork, mappings_after_fork_parent, mappings_after_fork_child);
}

/* The arguments of mapping_acquire. */
struct joining {
    const struct group *group;
    const struct shm_group *shm_group;
    const struct segment_shape *shape;
    int64_t deadline_ms;
};
/* Makes the token of a segment from the group's token and the number of the shm group, so that each segment of a group
   has its own. */
static void mapping_make_token(const struct joining *joining, unsigned char out[16])
{
    memcpy(out, joining->group->members[0].token, 16);
    for (int i = 0; i < 4; i++) out[12 + i] ^= (unsigned char)((unsigned)joining->shm_group->number >> 8 * i);
}

/* ---- making it ---- */
/* Creates the segment and sends its descriptor to the other processes of the shm group. */
static tutti_status mapping_create_segment(struct mapping *mapping, const struct joining *joining)
{
    int descriptor = -1;
    TRY(segment_create(&mapping->segment, joining->shape, mapping->token, &descriptor));
    tutti_status status = shm_group_send_descriptor(joining->group, joining->shm_group, mapping->token, descriptor);
    close(descriptor);
    return status;
}
/* Receives the segment's descriptor from its maker, and maps it. */
static tutti_status mapping_receive_segment(struct mapping *mapping, const struct joining *joining)
{
    int descriptor = -1;
    TRY(shm_group_receive_descriptor(joining->group, joining->shm_group, mapping->token, joining->deadline_ms,
        "the shared memory of the group", &descriptor));
    return segment_attach(&mapping->segment, joining->shape, mapping->token, descriptor);
}

/* ---- sharing it ---- */
/* Returns the mapping with that token, or NULL. The caller holds the lock. */
static struct mapping *mapping_find(const unsigned char token[16])
{
    for (struct mapping *mapping = mappings; mapping; mapping = mapping->next)
        if (memcmp(mapping->token, token, sizeof mapping->token) == 0) return mapping;
    return NULL;
}
/* Finds or adds the mapping with that token, and counts a user. Returns NULL if memory is short. The caller holds the
   lock. */
static struct mapping *mapping_get(const unsigned char token[16])
{
    struct mapping *mapping = mapping_find(token);
    if (!mapping && (mapping = memory_alloc_zeroed(1, sizeof *mapping)) != NULL) {
        memcpy(mapping->token, token, sizeof mapping->token);
        mapping->next = mappings;
        mappings = mapping;
    }
    if (mapping) mapping->users++;
    return mapping;
}
/* A ring of the latest groups that a rank of this process failed to join. */
static struct {
    struct { unsigned char token[16]; tutti_status status; char detail[STATUS_DETAIL_BYTES / 2]; } group[FAILURES];
    unsigned count;
} failures;
void mapping_record_failure(const struct group *group, tutti_status status, const char *detail)
{
    pthread_once(&once, mappings_prepare_fork);
    pthread_mutex_lock(&lock);
    unsigned at = failures.count++ % FAILURES;
    memcpy(failures.group[at].token, group->members[0].token, sizeof failures.group[at].token);
    failures.group[at].status = status;
    snprintf(failures.group[at].detail, sizeof failures.group[at].detail, "%.500s", detail);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}
/* Fails with the error of another rank of this process if that has failed to join the group. The caller holds the
   lock. */
static tutti_status mapping_check_failures(const struct group *group)
{
    for (unsigned i = 0; i < FAILURES && i < failures.count; i++)
        if (memcmp(failures.group[i].token, group->members[0].token, sizeof failures.group[i].token) == 0)
            return status_repeat(failures.group[i].status, failures.group[i].detail);
    return TUTTI_OK;
}
/* Waits until the first rank of this process has mapped the segment or has failed, and returns its result. */
static tutti_status mapping_await_first(struct mapping *mapping, const struct joining *joining)
{
    tutti_status status = TUTTI_OK;
    pthread_mutex_lock(&lock);
    while (!mapping->is_over && status == TUTTI_OK && clock_ms() < joining->deadline_ms) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += SLICE_MS * 1000000;
        if (until.tv_nsec >= 1000000000) { until.tv_nsec -= 1000000000; until.tv_sec++; }
        pthread_cond_timedwait(&changed, &lock, &until);
        if (mapping->is_over) break;
        status = mapping_check_failures(joining->group);
        pthread_mutex_unlock(&lock);
        if (status == TUTTI_OK) status = shm_group_check_join(joining->group);
        pthread_mutex_lock(&lock);
    }
    bool is_over = mapping->is_over;
    pthread_mutex_unlock(&lock);
    TRY(status);
    if (!is_over)
        return status_fail(TUTTI_TIMEOUT, "another rank of this process has not mapped the group's memory in time");
    return mapping->status == TUTTI_OK ? TUTTI_OK : status_repeat(mapping->status, mapping->detail);
}
/* Records the result of mapping the segment, and wakes the other ranks of this process. */
static void mapping_publish_result(struct mapping *mapping, tutti_status status)
{
    pthread_mutex_lock(&lock);
    mapping->status = status;
    if (status != TUTTI_OK) snprintf(mapping->detail, sizeof mapping->detail, "%.250s", status_detail());
    mapping->is_over = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}
tutti_status mapping_acquire(const struct group *group, const struct shm_group *shm_group,
    const struct segment_shape *shape, int64_t deadline_ms, struct mapping **out)
{
    const struct joining joining = { group, shm_group, shape, deadline_ms };
    unsigned char token[16];
    mapping_make_token(&joining, token);
    pthread_once(&once, mappings_prepare_fork);
    pthread_mutex_lock(&lock);
    struct mapping *mapping = mapping_get(token);
    pthread_mutex_unlock(&lock);
    if (!mapping) return status_fail(TUTTI_NO_MEMORY, "no memory for a segment");
    tutti_status status;
    if (shm_group_is_first_of_process(group, shm_group, group->rank)) {
        status = shm_group_is_maker(shm_group, group->rank) ? mapping_create_segment(mapping, &joining)
                                                            : mapping_receive_segment(mapping, &joining);
        mapping_publish_result(mapping, status);
    } else status = mapping_await_first(mapping, &joining);
    if (status != TUTTI_OK) { mapping_release(mapping); return status; }
    *out = mapping;
    return TUTTI_OK;
}
void mapping_release(struct mapping *mapping)
{
    if (!mapping) return;
    pthread_mutex_lock(&lock);
    bool is_last = --mapping->users == 0;
    for (struct mapping **at = &mappings; is_last && *at; at = &(*at)->next)
        if (*at == mapping) { *at = mapping->next; break; }
    pthread_mutex_unlock(&lock);
    if (!is_last) return;
    segment_detach(&mapping->segment);
    free(mapping);
}
