/* Buckets are chosen by name. Each has its posted receives in the order of posting and its arrivals in the order of
   arrival. A receive and a message that fit meet at once, so the k-th receive of a name takes its k-th message. */
#include "backend/transports/matching.h"
#include "backend/base/memory.h"
#include <assert.h>
#include <stdlib.h>

/* Returns the bucket of messages with this name. */
static struct bucket *matching_bucket(struct matching *matching, struct message_name name)
{
    /* The shift drops the type: a message of another type also meets its receive. */
    uint64_t mixed =
        (name.message << (64 - MESSAGE_TYPE_SHIFT)) * 0x9e3779b97f4a7c15u + name.operation * 0xbf58476d1ce4e5b9u;
    /* This is Fibonacci hashing (Knuth, volume 3, 6.4). */
    return &matching->bucket[mixed >> 56];
}
static_assert(MATCHING_BUCKETS == 256, "the top 8 bits of the product choose a bucket");

/* Returns whether the receive takes a message of this name from the rank `source`. */
static bool receive_accepts_message(const struct transfer *receive, int source, struct message_name name)
{
    return message_names_equal(receive->name, name) && (receive->peer == source || receive->peer == TRANSFER_ANY_PEER);
}
/* Removes the arrival after `before` (NULL: the first) from a bucket, and returns it. */
static struct arrival *bucket_unlink_arrival(struct bucket *bucket, struct arrival *before)
{
    struct arrival *arrival = before ? before->next : bucket->first;
    if (before) before->next = arrival->next;
    else bucket->first = arrival->next;
    if (bucket->last == arrival) bucket->last = before;
    arrival->next = NULL;
    return arrival;
}
struct arrival *matching_post_receive(struct matching *matching, struct transfer *receive)
{
    struct bucket *bucket = matching_bucket(matching, receive->name);
    for (struct arrival *before = NULL, *a = bucket->first; a; before = a, a = a->next)
        if (receive_accepts_message(receive, a->source, a->name)) return bucket_unlink_arrival(bucket, before);
    transfer_list_push(&bucket->posted, receive);
    return NULL;
}
struct transfer *matching_take_receive(struct matching *matching, int source, struct message_name name)
{
    struct bucket *bucket = matching_bucket(matching, name);
    for (struct transfer *before = NULL, *x = bucket->posted.first; x; before = x, x = x->next)
        if (receive_accepts_message(x, source, name)) return transfer_list_take(&bucket->posted, before);
    return NULL;
}
void matching_keep_arrival(struct matching *matching, struct arrival *arrival)
{
    struct bucket *bucket = matching_bucket(matching, arrival->name);
    arrival->next = NULL;
    if (bucket->first) bucket->last->next = arrival;
    else bucket->first = arrival;
    bucket->last = arrival;
}
bool matching_cancel_receive(struct matching *matching, const struct transfer *receive)
{
    return transfer_list_remove(&matching_bucket(matching, receive->name)->posted, receive);
}
struct transfer *matching_pop_receive(struct matching *matching, int peer)
{
    for (struct bucket *bucket = matching->bucket; bucket < matching->bucket + MATCHING_BUCKETS; bucket++)
        for (struct transfer *before = NULL, *x = bucket->posted.first; x; before = x, x = x->next)
            if (peer == TRANSFER_ANY_PEER || x->peer == peer) return transfer_list_take(&bucket->posted, before);
    return NULL;
}
struct arrival *matching_withdraw_arrival(struct matching *matching, const struct transport *transport, int source,
    struct message_name name, uint64_t id)
{
    struct bucket *bucket = matching_bucket(matching, name);
    for (struct arrival *before = NULL, *a = bucket->first; a; before = a, a = a->next)
        if (a->is_announced && a->transport == transport && a->source == source && a->id == id)
            return bucket_unlink_arrival(bucket, before);
    return NULL;
}
void matching_withdraw_all(struct matching *matching, int source)
{
    for (struct bucket *bucket = matching->bucket; bucket < matching->bucket + MATCHING_BUCKETS; bucket++)
        for (struct arrival *before = NULL, *a = bucket->first; a; a = before ? before->next : bucket->first) {
            if (a->is_announced && a->source == source)
                matching_arrival_free(matching, bucket_unlink_arrival(bucket, before));
            else before = a;
        }
}

void matching_visit_arrivals(const struct matching *matching,
    void (*visit)(void *context, const struct arrival *arrival), void *context)
{
    for (int i = 0; i < MATCHING_BUCKETS; i++)
        for (const struct arrival *a = matching->bucket[i].first; a; a = a->next) visit(context, a);
}

/* ---- memory: free arrivals of each size class are reused ---- */
/* Returns the least k, from 6 on, for which 2^k bytes are enough. */
static int arrival_size_class(size_t bytes)
{
    int size_class = 6;
    while ((size_t)1 << size_class < bytes) size_class++;
    return size_class;
}
struct arrival *matching_arrival_new(struct matching *matching, size_t bytes)
{
    int size_class = arrival_size_class(bytes);
    assert(size_class < MATCHING_CLASSES);
    struct arrival *arrival = matching->free_arrivals[size_class];
    if (arrival) matching->free_arrivals[size_class] = arrival->next;
    else if (!(arrival = memory_alloc_aligned(size_round_up(sizeof *arrival, 64) + ((size_t)1 << size_class))))
        return NULL;
    *arrival = (struct arrival){ .size_class = size_class,
        .data = (unsigned char *)arrival + size_round_up(sizeof *arrival, 64) };
    return arrival;
}
void matching_arrival_free(struct matching *matching, struct arrival *arrival)
{
    arrival->next = matching->free_arrivals[arrival->size_class];
    matching->free_arrivals[arrival->size_class] = arrival;
}
/* Frees the memory of all arrivals of a list. */
static void arrival_list_free(struct arrival *arrival)
{
    for (struct arrival *next; arrival; arrival = next) {
        next = arrival->next;
        free(arrival);
    }
}
void matching_finish(struct matching *matching)
{
    for (int i = 0; i < MATCHING_BUCKETS; i++) arrival_list_free(matching->bucket[i].first);
    for (int i = 0; i < MATCHING_CLASSES; i++) arrival_list_free(matching->free_arrivals[i]);
    *matching = (struct matching){ 0 };
}
