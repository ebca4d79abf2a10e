/* The pieces of a transfer form one stream of bytes. A cursor in the transfer (moved, piece, offset) gives the
   next byte. */
#pragma once
#include "backend/transports/transfer.h"

/* Sets transfer->wire to the bytes of all pieces and the cursor to the start. false: the sum exceeds 64 bits. */
bool pieces_start(struct transfer *transfer);
/* Copies the next `bytes` bytes of the stream into `to`; the stream must have that many left. Where the stream has
   padding, `to` keeps its old bytes. */
void pieces_gather(struct transfer *transfer, unsigned char *to, size_t bytes);
/* Copies `bytes` bytes of `from` to the next bytes of the stream, which must have that many left. Where the stream has
   padding, the bytes of `from` are not read. */
void pieces_scatter(struct transfer *transfer, const unsigned char *from, size_t bytes);
typedef void copy_function(void *to, const void *from, size_t bytes);
/* Copies with `copy` if the run has 1 KiB or more and `copy` is not NULL, otherwise with memcpy. */
void piece_copy(copy_function *copy, void *to, const void *from, size_t bytes);
/* Like pieces_gather and pieces_scatter, but each run is copied by piece_copy with `copy`. */
void pieces_gather_with(copy_function *copy, struct transfer *transfer, unsigned char *to, size_t bytes);
void pieces_scatter_with(copy_function *copy, struct transfer *transfer, const unsigned char *from, size_t bytes);
