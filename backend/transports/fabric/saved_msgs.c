/* Messages that arrived while their transport did not poll, or before this process joined their communicator. */
#include "backend/base/memory.h"
#include "backend/transports/fabric/fabric_transport.h"
#include <stdlib.h>
#include <string.h>

void saved_msgs_push(struct saved_msgs *saved_msgs, struct saved_msg *msg)
{
    msg->next = NULL;
    if (saved_msgs->last) saved_msgs->last->next = msg;
    else saved_msgs->first = msg;
    saved_msgs->last = msg;
    saved_msgs->count++;
}
struct saved_msg *saved_msgs_pop(struct saved_msgs *saved_msgs)
{
    struct saved_msg *msg = saved_msgs->first;
    if (!msg) return NULL;
    saved_msgs->first = msg->next;
    if (!saved_msgs->first) saved_msgs->last = NULL;
    saved_msgs->count--;
    return msg;
}
void saved_msg_free(struct fabric *fabric, struct saved_msg *msg)
{
    if (msg->pending) fabric->operations->release(fabric, msg->pending);
    free(msg);
}
struct saved_msg *saved_msg_new(const struct header *header, const void *data, size_t bytes, bool announced)
{
    struct saved_msg *msg = memory_alloc_zeroed(1, sizeof *msg + (announced ? 0 : bytes));
    if (!msg) return NULL;
    msg->header = *header;
    msg->announced = announced;
    msg->bytes = bytes;
    if (announced) msg->pending = (void *)(uintptr_t)data;
    else if (bytes) memcpy(msg->data, data, bytes);
    return msg;
}

/* ---- messages to groups that this process has not joined ---- */
static void early_msg_account(struct endpoint *from, const struct saved_msg *msg, int sign)
{
    size_t bytes = sizeof *msg + (msg->announced ? 0 : msg->bytes);
    from->early += sign;
    from->early_bytes = sign > 0 ? from->early_bytes + bytes : from->early_bytes - bytes;
}
struct saved_msg *early_msgs_pop(struct fabric *fabric)
{
    struct saved_msg *msg = saved_msgs_pop(&fabric->early);
    if (msg) early_msg_account(msg->from, msg, -1);
    return msg;
}
void early_msgs_push(struct fabric *fabric, struct saved_msg *msg)
{
    early_msg_account(msg->from, msg, 1);
    saved_msgs_push(&fabric->early, msg);
}
void early_msgs_forget(struct fabric *fabric, const struct endpoint *from)
{
    for (int left = fabric->early.count; left > 0; left--) {
        struct saved_msg *msg = early_msgs_pop(fabric);
        if (msg->from == from) saved_msg_free(fabric, msg);
        else early_msgs_push(fabric, msg);
    }
}
static bool early_msgs_keep(struct fabric *fabric, struct endpoint *from, const struct header *header, void *data,
    size_t bytes, bool announced)
{
    static const char too_much[] = "its process has sent too many messages to groups that this process has not "
                                   "joined";
    if (fabric_transport_was_closed(fabric, header->comm, header->to)) return false;
    bool room = from->early < EARLY_MOST && from->early_bytes < EARLY_BYTES;
    struct saved_msg *msg = room ? saved_msg_new(header, data, bytes, announced) : NULL;
    if (!msg) {
        endpoint_mark_faulty(fabric, from, room ? "no memory for the messages of its process" : too_much);
        return false;
    }
    msg->from = from;
    early_msgs_push(fabric, msg);
    return announced;
}

/* ---- arrivals ---- */
/* Returns a fault that is independent of the sender and the receiver of the message, or NULL. */
static const char *header_find_fault(const struct header *h, size_t bytes, bool announced)
{
    if (h->kind >= KINDS) return "its process has sent a message of an unknown kind";
    if (h->kind == MESSAGE && !announced && bytes == h->bytes && bytes <= EAGER_BYTES && !h->id) return NULL;
    bool carries = h->kind == MESSAGE, is_long = announced && bytes >= 1 && bytes <= (h->bytes ? h->bytes : 1);
    bool is_short = !announced && bytes == (carries ? h->bytes : 0) && bytes <= EAGER_BYTES;
    if (announced ? !carries || !is_long : !is_short) return "its process has sent a message of an invalid length";
    return carries && announced != (h->id != 0) ? "its process has sent a message with an invalid id" : NULL;
}
bool fabric_handle_message(struct fabric *fabric, struct endpoint *from, const struct header *header, void *data,
    size_t bytes, bool announced)
{
    const char *fault = from->faulty ? NULL : header_find_fault(header, bytes, announced);
    if (fault) endpoint_mark_faulty(fabric, from, fault);
    if (from->faulty) return false;
    struct fabric_transport *transport = fabric_transport_find(fabric, header->comm, header->to);
    return transport ? fabric_transport_handle_message(transport, from, header, data, bytes, announced)
                     : early_msgs_keep(fabric, from, header, data, bytes, announced);
}
