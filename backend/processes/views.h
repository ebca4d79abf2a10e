/* Views: blocks of peers' arenas as this process maps them. A block is requested at its first use. It stays mapped
 * until its owner has freed it and all holders have released it, or until its owner is gone. A refusal goes to the
 * holders at the time when it arrives; later requests start over. */
#pragma once
#include "backend/processes/peers.h"

struct view;
struct wait_set;
/* Holds the view of a block of that process in *held, which starts as NULL. Pair with view_release. IN_PROGRESS: the
   view is held but not mapped yet; call again with the same *held, or release it. INVALID_ARGUMENT: its owner has freed
   it. NO_MEMORY, SYSTEM: it cannot be mapped; the text gives the reason. After an error *held is NULL. */
tutti_status view_acquire(struct peer *peer, uint64_t block, struct view **held);
/* Ends one use of the view. NULL is allowed. */
void view_release(struct view *view);
/* Returns the address of `bytes` bytes at that offset of a mapped view, or NULL if they pass its end. */
unsigned char *view_address_at(const struct view *view, uint64_t offset, uint64_t bytes);
/* Adds the word to the set that changes when an answer about a view has arrived. Call it before view_acquire. */
void views_add_to_wait(struct wait_set *set);

/* ---- with registry.lock held ---- */
/* Sends a block of this process's arena to a peer that asked for it. `token` is that of the WANTED packet. */
void views_send_block(struct peer *peer, const unsigned char token[16]);
/* Handles a peer's answer to a request. `token` is that of the BLOCK packet. `attached_fd` is a file descriptor, which
   the function closes, or -1. */
void views_receive_block(struct peer *peer, const unsigned char token[16], int attached_fd);
/* Unmaps all views of a peer. They have no holders. */
void views_free_all(struct peer *peer);
