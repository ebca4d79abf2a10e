/* A queue is a list. It stays short: it has at most one message for each type, pair of ranks and communicator. */
#include "backend/processes/ctrl_queue.h"
#include "backend/base/memory.h"
#include <stdlib.h>
#include <string.h>

struct ctrl_entry *ctrl_queue_pop(struct ctrl_queue *list)
{
    struct ctrl_entry *entry = list->first;
    list->first = entry->next;
    if (!list->first) list->last = NULL;
    list->count--;
    return entry;
}
void ctrl_queue_push(struct ctrl_queue *list, struct ctrl_entry *entry)
{
    entry->next = NULL;
    if (list->last) list->last->next = entry;
    else list->first = entry;
    list->last = entry;
    list->count++;
}
/* Finds the last message of the same type, sender and receiver, or returns NULL. */
static struct ctrl_entry *ctrl_queue_find_same(const struct ctrl_queue *list, const struct ctrl_msg *msg)
{
    struct ctrl_entry *found = NULL;
    for (struct ctrl_entry *l = list->first; l; l = l->next)
        if (channel_address_equal(&l->msg.to, &msg->to) && l->msg.from == msg->from && l->msg.type == msg->type)
            found = l;
    return found;
}
bool ctrl_queue_add_or_replace(struct ctrl_queue *list, const struct ctrl_msg *msg, const unsigned char via[16])
{
    struct ctrl_entry *entry = ctrl_queue_find_same(list, msg);
    bool is_new = !entry;
    if (is_new) entry = memory_alloc_zeroed(1, sizeof *entry);
    if (!entry) return false;
    entry->msg = *msg;
    memcpy(entry->via, via, sizeof entry->via);
    if (is_new) ctrl_queue_push(list, entry);
    return true;
}
void ctrl_queue_free(struct ctrl_queue *list)
{
    while (list->first) free(ctrl_queue_pop(list));
}
