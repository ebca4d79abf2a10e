/* Queues of control messages. A message is a state, so a later one takes the place of an earlier one that still waits.
 * registry.lock guards every queue, and the queue owns its entries. */
#pragma once
#include "backend/processes/packet.h"

/* `via` is the nonce of the process that delivered the message, or of this process for its own messages. */
struct ctrl_entry { struct ctrl_entry *next; struct ctrl_msg msg; unsigned char via[16]; };
struct ctrl_queue { struct ctrl_entry *first, *last; int count; };

/* Adds the entry at the end, and owns it. */
void ctrl_queue_push(struct ctrl_queue *list, struct ctrl_entry *entry);
/* Takes the first entry of a queue that is not empty. The caller frees it. */
struct ctrl_entry *ctrl_queue_pop(struct ctrl_queue *list);
/* Puts the message in the place of an earlier one of the same type, sender and receiver, or at the end. Returns false
   without memory. */
bool ctrl_queue_add_or_replace(struct ctrl_queue *list, const struct ctrl_msg *msg, const unsigned char via[16]);
void ctrl_queue_free(struct ctrl_queue *list);
