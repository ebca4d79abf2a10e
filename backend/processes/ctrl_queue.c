/* A queue is a list. It stays short: it has at most one message for each type, pair of ranks and communicator. */
#include "backend/processes/ctrl_queue.h"
#include "backend/base/memory.h"
#include <stdlib.h>
#include <string.h>

struct ctrl_entry *ctrl_queue_pop(struct ctrl_queue *queue)
{
    struct ctrl_entry *entry = queue->first;
    queue->first = entry->next;
    if (!queue->first) queue->last = NULL;
    queue->count--;
    return entry;
}
void ctrl_queue_push(struct ctrl_queue *queue, struct ctrl_entry *entry)
{
    entry->next = NULL;
    if (queue->last) queue->last->next = entry;
    else queue->first = entry;
    queue->last = entry;
    queue->count++;
}
/* Finds the last message of the same type, sender and receiver, or returns NULL. */
static struct ctrl_entry *ctrl_queue_find_same(const struct ctrl_queue *queue, const struct ctrl_msg *msg)
{
    struct ctrl_entry *found = NULL;
    for (struct ctrl_entry *entry = queue->first; entry; entry = entry->next)
        if (channel_address_equal(&entry->msg.to, &msg->to) && entry->msg.from == msg->from
            && entry->msg.type == msg->type)
            found = entry;
    return found;
}
bool ctrl_queue_add_or_replace(struct ctrl_queue *queue, const struct ctrl_msg *msg, const unsigned char via[16])
{
    struct ctrl_entry *entry = ctrl_queue_find_same(queue, msg);
    bool is_new = !entry;
    if (is_new) entry = memory_alloc_zeroed(1, sizeof *entry);
    if (!entry) return false;
    entry->msg = *msg;
    memcpy(entry->via, via, sizeof entry->via);
    if (is_new) ctrl_queue_push(queue, entry);
    return true;
}
void ctrl_queue_free(struct ctrl_queue *queue)
{
    while (queue->first) free(ctrl_queue_pop(queue));
}
