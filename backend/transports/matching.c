/* Buckets are chosen by name. Each has its posted receives in the order of posting and its arrivals in the order of
   arrival. A receive and a message that fit meet at once, so the k-th receive of a name takes its k-th message. */
#include "backend/transports/matching.h"
#include "backend/base/memory.h"
#include <assert.h>
#include <stdlib.h>

static struct bucket *bucket_of(struct matching *m, struct message_name name)
{
    uint64_t mixed = name.message * 0x9e3779b97f4a7c15u + name.operation * 0xbf58476d1ce4e5b9u;
    /* This is Fibonacci hashing (Knuth, volume 3, 6.4). */
    return &m->bucket[mixed >> 56];
}
static_assert(MATCHING_BUCKETS == 256, "the top 8 bits of the product choose a bucket");

static bool receive_takes(const struct transfer *receive, int source, struct message_name name)
{
    return name_is(receive->name, name) && (receive->peer == source || receive->peer == TRANSFER_ANY_PEER);
}
static struct arrival *unlink_after(struct bucket *b, struct arrival *before)
{
    struct arrival *a = before ? before->next : b->first;
    if (before) before->next = a->next;
    else b->first = a->next;
    if (b->last == a) b->last = before;
    a->next = NULL;
    return a;
}
struct arrival *matching_post(struct matching *m, struct transfer *receive)
{
    struct bucket *b = bucket_of(m, receive->name);
    for (struct arrival *before = NULL, *a = b->first; a; before = a, a = a->next)
        if (receive_takes(receive, a->source, a->name)) return unlink_after(b, before);
    queue_push(&b->posted, receive);
    return NULL;
}
struct transfer *matching_arrive(struct matching *m, int source, struct message_name name)
{
    struct bucket *b = bucket_of(m, name);
    for (struct transfer *before = NULL, *x = b->posted.first; x; before = x, x = x->next)
        if (receive_takes(x, source, name)) return queue_take(&b->posted, before);
    return NULL;
}
void matching_keep(struct matching *m, struct arrival *arrival)
{
    struct bucket *b = bucket_of(m, arrival->name);
    arrival->next = NULL;
    if (b->first) b->last->next = arrival;
    else b->first = arrival;
    b->last = arrival;
}
bool matching_cancel(struct matching *m, const struct transfer *receive)
{
    return queue_remove(&bucket_of(m, receive->name)->posted, receive);
}
struct transfer *matching_pop(struct matching *m, int peer)
{
    for (struct bucket *b = m->bucket; b < m->bucket + MATCHING_BUCKETS; b++)
        for (struct transfer *before = NULL, *x = b->posted.first; x; before = x, x = x->next)
            if (peer == TRANSFER_ANY_PEER || x->peer == peer) return queue_take(&b->posted, before);
    return NULL;
}
struct arrival *matching_withdraw(struct matching *m, const struct transport *by, int source, struct message_name name,
    uint64_t id)
{
    struct bucket *b = bucket_of(m, name);
    for (struct arrival *before = NULL, *a = b->first; a; before = a, a = a->next)
        if (a->announced && a->by == by && a->source == source && a->id == id) return unlink_after(b, before);
    return NULL;
}
void matching_withdraw_all(struct matching *m, int source)
{
    for (struct bucket *b = m->bucket; b < m->bucket + MATCHING_BUCKETS; b++)
        for (struct arrival *before = NULL, *a = b->first; a; a = before ? before->next : b->first) {
            if (a->announced && a->source == source) matching_free(m, unlink_after(b, before));
            else before = a;
        }
}

void matching_each(const struct matching *m, void (*call)(void *context, const struct arrival *arrival), void *context)
{
    for (int i = 0; i < MATCHING_BUCKETS; i++)
        for (const struct arrival *a = m->bucket[i].first; a; a = a->next) call(context, a);
}

/* ---- memory: free arrivals of each size class are reused ---- */
static int class_of(size_t bytes)
{
    int class = 6;
    while ((size_t)1 << class < bytes) class++;
    return class;
}
struct arrival *matching_arrival(struct matching *m, size_t bytes)
{
    int class = class_of(bytes);
    assert(class < MATCHING_CLASSES);
    struct arrival *a = m->spare[class];
    if (a) m->spare[class] = a->next;
    else if (!(a = memory_aligned(size_round_up(sizeof *a, 64) + ((size_t)1 << class)))) return NULL;
    *a = (struct arrival){ .class = class, .data = (unsigned char *)a + size_round_up(sizeof *a, 64) };
    return a;
}
void matching_free(struct matching *m, struct arrival *arrival)
{
    arrival->next = m->spare[arrival->class];
    m->spare[arrival->class] = arrival;
}
static void free_list(struct arrival *a)
{
    for (struct arrival *next; a; a = next) {
        next = a->next;
        free(a);
    }
}
void matching_finish(struct matching *m)
{
    for (int i = 0; i < MATCHING_BUCKETS; i++) free_list(m->bucket[i].first);
    for (int i = 0; i < MATCHING_CLASSES; i++) free_list(m->spare[i]);
    *m = (struct matching){ 0 };
}
