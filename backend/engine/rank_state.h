/* The state of a rank as others may see it: the collective that it called last, the operation that is open, its
 * failure, and the line of its program. It is read while the rank changes it, so the values may not fit together. */
#pragma once
#include "backend/base/text_buffer.h"
#include "backend/control/snapshot_socket.h"
#include "backend/engine/error_text.h"
#include <stdbool.h>

enum { FAILURE_TEXT_BYTES = 400 };
/* A rank sends its own to other hosts as it is in memory, because all ranks have a library of the same sources. */
struct rank_state {
    /* The number of collectives that the rank has called, and the description of the last one. */
    uint64_t calls;
    char call[ERROR_TEXT_BYTES];
    /* How long a thread has waited for the open operation, or -1 if no thread waits for it. */
    int64_t age_ms;
    /* The enum activity_kind of the open operation; ACTIVITY_NONE without one. */
    uint32_t kind;
    /* If a thread waits for a message: whether the rank sends it, its peer (-1: any rank), its tag and bytes. peer is
       set for an operation of a window, too. */
    uint32_t is_send;
    int32_t peer;
    uint32_t tag;
    uint64_t bytes;
    /* The error with which the group has failed on the rank, or empty. */
    char failure[FAILURE_TEXT_BYTES];
    /* The line of the program that the rank's process runs, or empty; place_is_due: the program has not told it yet. */
    char place[PLACE_BYTES];
    uint32_t place_is_due;
    /* Another group in which a thread of the rank's process waits, or empty. */
    char waits_in[GROUP_NAME_BYTES];
};
/* Reads the state of this rank, without its place and without waits_in. Any thread; the communicator has joined its
   group. */
void rank_state_read(const tutti_comm *comm, struct rank_state *out);
/* Copies the newest declaration of the rank with this index on this host. Returns false if it has called no collective.
   The copy may be mixed of two calls if the rank is not waiting. */
bool declaration_peek_newest(const struct segment *segment, int index, struct declaration *out);
/* Makes the texts of a state that a peer has sent printable. Returns false if another value is invalid in a group of
   `size` ranks. */
bool rank_state_check(struct rank_state *state, int size);
/* Appends the open operation as JSON. */
void rank_state_append_open(struct text_buffer *text, const struct rank_state *state);
