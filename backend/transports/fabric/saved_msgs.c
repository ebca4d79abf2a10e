/* Messages that arrived while their transport did not poll, or before this process joined their communicator. */
#include "backend/base/memory.h"
#include "backend/transports/fabric/fabric.h"
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
    if (msg->descriptor) fabric->operations->release(fabric, msg->descriptor);
    free(msg);
}
struct saved_msg *saved_msg_new(const struct header *header, const void *data, size_t bytes, bool is_announced)
{
    struct saved_msg *msg = memory_alloc_zeroed(1, sizeof *msg + (is_announced ? 0 : bytes));
    if (!msg) return NULL;
    msg->header = *header;
    msg->is_announced = is_announced;
    msg->bytes = bytes;
    if (is_announced) msg->descriptor = (void *)(uintptr_t)data;
    else if (bytes) memcpy(msg->data, data, bytes);
    return msg;
}

/* ---- messages to groups that this process has not joined ---- */
/* Adds a message to the counts of the endpoint by which it came (sign 1), or removes it from them (sign -1). */
static void early_msg_account(struct endpoint *endpoint, const struct saved_msg *msg, int sign)
{
    size_t bytes = sizeof *msg + (msg->is_announced ? 0 : msg->bytes);
    endpoint->early_count += sign;
    endpoint->early_bytes = sign > 0 ? endpoint->early_bytes + bytes : endpoint->early_bytes - bytes;
}
struct saved_msg *early_msgs_pop(struct fabric *fabric)
{
    struct saved_msg *msg = saved_msgs_pop(&fabric->early);
    if (msg) early_msg_account(msg->endpoint, msg, -1);
    return msg;
}
void early_msgs_push(struct fabric *fabric, struct saved_msg *msg)
{
    early_msg_account(msg->endpoint, msg, 1);
    saved_msgs_push(&fabric->early, msg);
}
void early_msgs_forget(struct fabric *fabric, const struct endpoint *endpoint)
{
    for (int left = fabric->early.count; left > 0; left--) {
        struct saved_msg *msg = early_msgs_pop(fabric);
        if (msg->endpoint == endpoint) saved_msg_free(fabric, msg);
        else early_msgs_push(fabric, msg);
    }
}
