/* Buckets are chosen by name. Each has its posted receives in the order of posting and its arrivals in the order of
   arrival. A receive and a message that fit meet at once, so the k-th receive of a name takes its k-th message. */
#include "backend/transports/matching.h"
#include "backend/base/memory.h"
#include <assert.h>
#include <stdlib.h>

static struct bucket *matching_bucket(struct matching *m, struct message_name name)
{
    uint64_t mixed = name.message * 0x9e3779b97f4a7c15u + name.operation * 0xbf58476d1ce4e5b9u;
    /* This is Fibonacci hashing (Knuth, volume 3, 6.4). */
    return &m->bucket[mixed >> 56];
}
static_assert(MATCHING_BUCKETS == 256, "the top 8 bits of the product choose a bucket");

static bool receive_accepts_message(const struct transfer *receive, int source, struct message_name name)
{
    return message_names_equal(receive->name, name) && (receive->peer == source || receive->peer == TRANSFER_ANY_PEER);
}
static struct arrival *bucket_unlink_arrival(struct bucket *b, struct arrival *before)
{
    struct arrival *a = before ? before->next : b->first;
    if (before) before->next = a->next;
    else b->first = a->next;
    if (b->last == a) b->last = before;
    a->next = NULL;
    return a;
}
struct arrival *matching_post_receive(struct matching *m, struct transfer *receive)
{
    struct bucket *b = matching_bucket(m, receive->name);
    for (struct arrival *before = NULL, *a = b->first; a; before = a, a = a->next)
        if (receive_accepts_message(receive, a->source, a->name)) return bucket_unlink_arrival(b, before);
    transfer_list_push(&b->posted, receive);
    return NULL;
}
struct transfer *matching_take_receive(struct matching *m, int source, struct message_name name)
{
    struct bucket *b = matching_bucket(m, name);
    for (struct transfer *before = NULL, *x = b->posted.first; x; before = x, x = x->next)
        if (receive_accepts_message(x, source, name)) return transfer_list_take(&b->posted, before);
    return NULL;
}
void matching_keep_arrival(struct matching *m, struct arrival *arrival)
{
    struct bucket *b = matching_bucket(m, arrival->name);
    arrival->next = NULL;
    if (b->first) b->last->next = arrival;
    else b->first = arrival;
    b->last = arrival;
}
bool matching_cancel_receive(struct matching *m, const struct transfer *receive)
{
    return transfer_list_remove(&matching_bucket(m, receive->name)->posted, receive);
}
struct transfer *matching_pop_receive(struct matching *m, int peer)
{
    for (struct bucket *b = m->bucket; b < m->bucket + MATCHING_BUCKETS; b++)
        for (struct transfer *before = NULL, *x = b->posted.first; x; before = x, x = x->next)
            if (peer == TRANSFER_ANY_PEER || x->peer == peer) return transfer_list_take(&b->posted, before);
    return NULL;
}
struct arrival *matching_withdraw_arrival(struct matching *m, const struct transport *by, int source,
    struct message_name name, uint64_t id)
{
    struct bucket *b = matching_bucket(m, name);
    for (struct arrival *before = NULL, *a = b->first; a; before = a, a = a->next)
        if (a->announced && a->by == by && a->source == source && a->id == id) return bucket_unlink_arrival(b, before);
    return NULL;
}
void matching_withdraw_all(struct matching *m, int source)
{
    for (struct bucket *b = m->bucket; b < m->bucket + MATCHING_BUCKETS; b++)
        for (struct arrival *before = NULL, *a = b->first; a; a = before ? before->next : b->first) {
            if (a->announced && a->source == source) matching_arrival_free(m, bucket_unlink_arrival(b, before));
            else before = a;
        }
}

void matching_visit_arrivals(const struct matching *m, void (*call)(void *context, const struct arrival *arrival),
    void *context)
{
    for (int i = 0; i < MATCHING_BUCKETS; i++)
        for (const struct arrival *a = m->bucket[i].first; a; a = a->next) call(context, a);
}

/* ---- memory: free arrivals of each size class are reused ---- */
static int arrival_size_class(size_t bytes)
{
    int class = 6;
    while ((size_t)1 << class < bytes) class++;
    return class;
}
struct arrival *matching_arrival_new(struct matching *m, size_t bytes)
{
    int class = arrival_size_class(bytes);
    assert(class < MATCHING_CLASSES);
    struct arrival *a = m->spare[class];
    if (a) m->spare[class] = a->next;
    else if (!(a = memory_alloc_aligned(size_round_up(sizeof *a, 64) + ((size_t)1 << class)))) return NULL;
    *a = (struct arrival){ .class = class, .data = (unsigned char *)a + size_round_up(sizeof *a, 64) };
    return a;
}
void matching_arrival_free(struct matching *m, struct arrival *arrival)
{
    arrival->next = m->spare[arrival->class];
    m->spare[arrival->class] = arrival;
}
static void arrival_list_free(struct arrival *a)
{
    for (struct arrival *next; a; a = next) {
        next = a->next;
        free(a);
    }
}
void matching_finish(struct matching *m)
{
    for (int i = 0; i < MATCHING_BUCKETS; i++) arrival_list_free(m->bucket[i].first);
    for (int i = 0; i < MATCHING_CLASSES; i++) arrival_list_free(m->spare[i]);
    *m = (struct matching){ 0 };
}
