/* The exchange of packed slices of gradients. If all hosts have the same number of ranks, the ranks of a host first sum
 * their gradients (on host_comm), and the ranks of one index exchange the sums between hosts. Otherwise all ranks
 * exchange. The ranks that exchange are the sides: each sends every other side its numbers for that side's slice. */
#pragma once
#include "include/tutti_zero.h"
#include "kernels/compress.h"
#include "zero/topology.h"

struct compressed_exchange {
    tutti_compression how;
    struct topology places;
    /* host_comm has the ranks of this host, or is NULL if they do not sum first. side_comm has the sides. */
    tutti_comm *host_comm, *side_comm;
    /* `side` is this rank's number among `sides`. */
    int ranks, sides, side;
    /* The arguments of a sum on this host: the elements for each rank, and their offset. */
    size_t *lengths, *offsets;                          /* [ranks of this host], owned */
};
/* Creates the communicators. Collective; the caller has checked that the ranks have the same compression. The caller
   must call exchange_finish in every case. */
tutti_status exchange_init(struct compressed_exchange *exchange, const tutti_compression *how, tutti_comm *all);
void exchange_finish(struct compressed_exchange *exchange);
/* Ends the waits of other ranks for this rank with an error. */
void exchange_abort_comms(struct compressed_exchange *exchange);
/* Refuses options that are out of range or contradict each other. */
tutti_status compression_check_options(const tutti_compression *how);
/* Returns a hash by which ranks compare their compressions: equal ones have equal digests. */
uint64_t compression_digest(const tutti_compression *how);
/* Returns the rank (in the communicator of all ranks) that is side number `side`. */
int exchange_side_rank(const struct compressed_exchange *exchange, int side);

/* The buffers of the exchange of one array: a packed slice for each side, and one from each side. */
struct packed_slices {
    /* `out` has what this rank sends, `in` what it receives. */
    char *out, *in;                                     /* owned */
    /* A packed slice has at most slice_bytes, and the packed average of a slice at most average_bytes. `out` and `in`
       have side_room bytes for each side. */
    size_t slice_bytes, average_bytes, side_room;       /* bytes */
    /* `sources` points to the received slices in `in`. */
    const void **sources;                               /* [sides], owned */
    /* The bytes sent to each side, the bytes received from each, and their offsets in `out` and `in`. */
    size_t *out_bytes, *in_bytes, *offsets;             /* [sides], owned as one array */
    /* The packed bytes of the array that this rank has sent to others. */
    size_t sent_bytes;
};
/* Makes room for slices of `count` numbers. *packed starts as zeros. */
tutti_status packed_resize(struct packed_slices *packed, const struct compressed_exchange *exchange, size_t count);
void packed_finish(struct packed_slices *packed);
/* `count` numbers in memory at `at`, which begin at element `first` of their array. Random choices follow from the seed
   and `sequence`, the number of the exchange, which are the same on all ranks. */
struct numbers { void *at; size_t count, first; tutti_dtype dtype; uint64_t sequence; };
/* The residual and the momentum of packed numbers. Either may be NULL. */
struct packing_state { float *residual, *momentum; };
/* Returns the state of the numbers from element `first` on. */
static inline struct packing_state packing_state_offset(struct packing_state state, size_t first)
{
    return (struct packing_state){ state.residual ? state.residual + first : NULL,
        state.momentum ? state.momentum + first : NULL };
}
/* Returns how many floats the state of `count` numbers has: their residual, and their momentum if the compression has
   momentum. */
size_t exchange_count_state(const struct compressed_exchange *exchange, size_t count);
/* Returns the residual and the momentum in `array`, which has exchange_count_state(exchange, count) floats or is
   NULL. */
struct packing_state exchange_split_state(const struct compressed_exchange *exchange, float *array, size_t count);
/* Packs the slice of one side, `from` and its residual, into `packed->out`. The new residual replaces the old one.
   Momentum changes the numbers in `from`. */
void packed_write_slice(struct packed_slices *packed, const struct compressed_exchange *exchange, int side,
    struct numbers from, struct packing_state state);
/* Packs this rank's averaged slice, `from` and its residual, which goes back to all sides. residual may be NULL. */
void packed_write_average(struct packed_slices *packed, const struct compressed_exchange *exchange, struct numbers from,
    float *residual);
/* Returns true if the length of packed slices varies (THRESHOLD). Sides then exchange lengths before slices. */
bool exchange_sends_lengths(const struct compressed_exchange *exchange);
/* Starts the exchange of lengths, all to all. */
tutti_status packed_send_lengths(struct packed_slices *packed, const struct compressed_exchange *exchange,
    tutti_request *request);
/* Starts the exchange of packed slices, all to all, after the exchange of lengths if there is one. */
tutti_status packed_send_slices(struct packed_slices *packed, const struct compressed_exchange *exchange,
    tutti_request *request);
/* Unpacks the slices received from all sides, and writes their sum, divided by the number of ranks, to `to`. Here and
   below, INTERNAL means that a rank has sent an invalid slice; the text names the rank. */
tutti_status packed_average_slices(const struct packed_slices *packed, const struct compressed_exchange *exchange,
    struct numbers to);
/* Sends the packed average of packed_write_average to all sides, and receives theirs. */
tutti_status packed_send_average(struct packed_slices *packed, const struct compressed_exchange *exchange);
/* Unpacks the average that one side has sent back into `to`. */
tutti_status packed_read_average(const struct packed_slices *packed, const struct compressed_exchange *exchange,
    int side, struct numbers to);
