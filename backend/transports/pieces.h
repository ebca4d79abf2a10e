/* The pieces of a transfer as one stream of bytes, with a cursor in the transfer (moved, piece, offset). */
#pragma once
#include "backend/transports/transfer.h"

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
