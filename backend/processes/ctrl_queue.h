/* Queues of control messages. A message is a state, so a later one takes the place of an earlier one that still waits.
 * registry.lock guards every queue, and the queue owns its entries. */
#pragma once
#include "backend/processes/packet.h"

/* `via` is the nonce of the process that delivered the message, or of this process for its own messages. */
struct ctrl_entry { struct ctrl_entry *next; struct ctrl_msg msg; unsigned char via[16]; };
struct ctrl_queue { struct ctrl_entry *first, *last; int count; };

/* Adds the entry at the end; the queue owns it from then on. */
void ctrl_queue_push(struct ctrl_queue *queue, struct ctrl_entry *entry);
/* Takes the first entry of a queue that is not empty. The caller frees it. */
struct ctrl_entry *ctrl_queue_pop(struct ctrl_queue *queue);
/* Puts a copy of the message in the place of an earlier one of the same type, sender and receiver, or at the end. `via`
   is the nonce of the process that delivered it. Returns false if memory is short. */
bool ctrl_queue_add_or_replace(struct ctrl_queue *queue, const struct ctrl_msg *msg, const unsigned char via[16]);
/* Frees all entries. */
void ctrl_queue_free(struct ctrl_queue *queue);
