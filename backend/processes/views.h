/* Views: blocks of peers' arenas as they are mapped here. A block is asked for when it is first needed, and stays
 * mapped until its owner has given it back and nobody here holds it, or its owner is gone. A refusal is for those who
 * held the view when it came, and for nobody else. */
#pragma once
#include "backend/processes/peers.h"

struct view;
struct wait_set;
/* Holds the view of a block of that process in *held, which is NULL before; pair with view_release. IN_PROGRESS: it is
   on its way and held already, call again with the same *held, or release it. INVALID_ARGUMENT: its owner has freed it.
   NO_MEMORY, SYSTEM: it cannot be mapped; the text says why. After an error *held is NULL. */
tutti_status view_acquire(struct peer *peer, uint64_t block, struct view **held);
void view_release(struct view *view);                   /* NULL is fine */
unsigned char *view_at(const struct view *view, uint64_t offset, uint64_t bytes);      /* NULL: beyond its end */
/* Adds the word that changes when a view has come; before view_acquire is called. */
void views_await(struct wait_set *set);
