/* The pieces of a transfer as one stream of bytes, with a cursor in the transfer (moved, piece, offset). */
#pragma once
#include "backend/transports/transfer.h"

/* Sets transfer->wire to the bytes of all pieces and the cursor to the start. false: the sum exceeds 64 bits. */
bool pieces_start(struct transfer *transfer);
/* Copies the next `bytes` of the stream into memory, or from memory into the stream, which must have that many left.
   Both skip padding: `to` keeps its old bytes in those places, and those of `from` are not read. */
void pieces_gather(struct transfer *transfer, unsigned char *to, size_t bytes);
void pieces_scatter(struct transfer *transfer, const unsigned char *from, size_t bytes);
/* These variants copy runs of 1 KiB and more with the given function. NULL: memcpy. */
typedef void copy_function(void *to, const void *from, size_t bytes);
void piece_copy(copy_function *copy, void *to, const void *from, size_t bytes);
void pieces_gather_with(copy_function *copy, struct transfer *transfer, unsigned char *to, size_t bytes);
void pieces_scatter_with(copy_function *copy, struct transfer *transfer, const unsigned char *from, size_t bytes);
