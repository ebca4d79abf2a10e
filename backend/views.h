/* Views: blocks of peers' arenas as they are mapped here. A block is asked for when it is first needed, and stays
 * mapped until its owner has given it back and nobody here holds it, or its owner is gone. */
#pragma once
#include "backend/peers.h"

struct view;
struct wait_set;
/* Holds the view of a block of that process; pair with view_release. IN_PROGRESS: it is on its way, call again.
   INVALID_ARGUMENT: its owner has freed it. NO_MEMORY, SYSTEM: it cannot be mapped; the text says why. */
tutti_status view_acquire(struct peer *peer, uint64_t block, struct view **out);
void view_release(struct view *view);                   /* NULL is fine */
unsigned char *view_at(const struct view *view, uint64_t offset, uint64_t bytes);      /* NULL: beyond its end */
/* Adds the word that changes when a view has come; before view_acquire is called. */
void views_await(struct wait_set *set);
