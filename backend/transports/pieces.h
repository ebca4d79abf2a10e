/* The pieces of a transfer as one stream of bytes, with a cursor in the transfer (moved, piece, offset). */
#pragma once
#include "backend/transports/transport.h"

/* Sets transfer->wire, the bytes of the whole, and the cursor to its start. false: the sum does not fit in 64 bits. */
bool pieces_start(struct transfer *transfer);
/* The next `bytes` of the stream (which must be there) into memory, or from memory. Padding is skipped on both sides:
   memory keeps what it had in those places, or is not looked at. */
void pieces_gather(struct transfer *transfer, unsigned char *to, size_t bytes);
void pieces_scatter(struct transfer *transfer, const unsigned char *from, size_t bytes);
/* The same with a function that copies what is not too short for it; NULL: memcpy. */
typedef void copy_function(void *to, const void *from, size_t bytes);
void piece_copy(copy_function *copy, void *to, const void *from, size_t bytes);
void pieces_gather_with(copy_function *copy, struct transfer *transfer, unsigned char *to, size_t bytes);
void pieces_scatter_with(copy_function *copy, struct transfer *transfer, const unsigned char *from, size_t bytes);

/* How a transfer ends, always one of these. */
static inline void transfer_done(struct transfer *x) { x->state = TRANSFER_DONE; }
static inline void transfer_fail(struct transfer *x, tutti_status status, uint64_t theirs)
{
    x->status = status;
    x->theirs = theirs;
    x->state = TRANSFER_FAILED;
}
/* For what status_fail has just given a text for, which is kept. */
void transport_keep_reason(struct transport *transport);
static inline void transfer_refuse(struct transport *t, struct transfer *x, tutti_status status)
{
    transport_keep_reason(t);
    transfer_fail(x, status, 0);
}
