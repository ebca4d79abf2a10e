/* The exchange of packed slices of gradients. If all hosts have the same number of ranks, the ranks of a host first sum
 * their gradients (`here`), and the ranks of one index exchange the sums between hosts; otherwise all ranks exchange.
 * These ranks are the sides of the exchange: each sends every other side its numbers for that side's slice. */
#pragma once
#include "include/tutti_zero.h"
#include "kernels/compress.h"
#include "zero/topology.h"

struct compressed_exchange {
    tutti_compression how;
    struct topology places;
    /* `here` sums on this host, and is NULL if the ranks of a host do not sum first. `across` exchanges. */
    tutti_comm *here, *across;
    /* `side` is this rank's number among `sides`. */
    int ranks, sides, side;
    /* These are arguments of the sum on this host. */
    size_t *lengths, *offsets;                          /* [ranks of this host], owned */
};
/* Collective. The caller compares the ranks' compressions. The caller must call exchange_finish in every case. */
tutti_status exchange_init(struct compressed_exchange *exchange, const tutti_compression *how, tutti_comm *all);
void exchange_finish(struct compressed_exchange *exchange);
/* Ends the waits of other ranks for this rank with an error. */
void exchange_abort_comms(struct compressed_exchange *exchange);
/* Refuses options that are out of range or contradict each other. */
tutti_status compression_check_options(const tutti_compression *how);
/* Equal compressions have equal digests. */
uint64_t compression_digest(const tutti_compression *how);
/* Returns the rank behind a side. */
int exchange_rank(const struct compressed_exchange *exchange, int side);

/* The exchange of one array uses these buffers: a packed slice for each side, and one from each side. */
struct packed_slices {
    char *out, *in;                                     /* owned */
    /* `slot` limits a packed slice on its way to its side, `back` one on its way back. The buffers have `room`. */
    size_t slot, back, room;                            /* bytes of one slice */
    /* `sources` points to the received slices in `in`. */
    const void **sources;                               /* [sides], owned */
    /* These have the bytes sent to each side, the bytes received from each, and their offsets. */
    size_t *given, *taken, *offsets;                    /* [sides] */
    /* This rank has sent this many packed bytes of the array. */
    size_t sent;
};
/* Makes room for slices of `count` numbers. *packed starts as zeros. */
tutti_status packed_resize(struct packed_slices *packed, const struct compressed_exchange *exchange, size_t count);
void packed_finish(struct packed_slices *packed);
/* These numbers begin at element `first` of their array. Random choices follow from the seed and `turn`, which are the
   same on all ranks. */
struct numbers { void *at; size_t count, first; tutti_dtype dtype; uint64_t turn; };
/* Packing keeps the residual and the momentum of its numbers here. Either may be NULL. */
struct kept_numbers { float *lost, *momentum; };
static inline struct kept_numbers kept_numbers_offset(struct kept_numbers kept, size_t first)
{
    return (struct kept_numbers){ kept.lost ? kept.lost + first : NULL, kept.momentum ? kept.momentum + first : NULL };
}
/* Returns how many floats a rank keeps for `count` numbers: their residual, and their momentum if there is one. */
size_t exchange_count_kept(const struct compressed_exchange *exchange, size_t count);
/* Splits `array`, which has exchange_count_kept() floats, into residual and momentum. */
struct kept_numbers exchange_split_kept(const struct compressed_exchange *exchange, float *array, size_t count);
/* Packs the slice of one side. Momentum changes the numbers in `from`. */
void packed_write_slice(struct packed_slices *packed, const struct compressed_exchange *exchange, int side,
    struct numbers from, struct kept_numbers kept);
/* Packs this rank's averaged slice, which goes back to all sides. */
void packed_write_average(struct packed_slices *packed, const struct compressed_exchange *exchange, struct numbers from,
    float *lost);
/* Returns true if the length of packed slices varies. Sides then exchange lengths before slices. */
bool exchange_sends_lengths(const struct compressed_exchange *exchange);
tutti_status packed_send_lengths(struct packed_slices *packed, const struct compressed_exchange *exchange,
    tutti_request *request);
tutti_status packed_send(struct packed_slices *packed, const struct compressed_exchange *exchange,
    tutti_request *request);
/* Writes to `to` the average over all ranks of the slices from all sides. Here and below, INTERNAL means that a rank
   has sent an invalid slice; the text names the rank. */
tutti_status packed_average_slices(const struct packed_slices *packed, const struct compressed_exchange *exchange,
    struct numbers to);
/* Sends the slice of packed_write_average to all sides. */
tutti_status packed_send_average(struct packed_slices *packed, const struct compressed_exchange *exchange);
/* Unpacks the slice that came back from a side. */
tutti_status packed_read_average(const struct packed_slices *packed, const struct compressed_exchange *exchange,
    int side, struct numbers to);
