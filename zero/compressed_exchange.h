/* The exchange of packed slices of gradients. If all hosts have the same number of ranks, the ranks of a host first sum
 * their gradients (`here`), and the ranks of one index exchange the sums between hosts; otherwise all ranks exchange.
 * These ranks are the sides of the exchange: each sends every other side its numbers for that side's slice. */
#pragma once
#include "include/tutti_zero.h"
#include "kernels/compress.h"
#include "zero/places.h"

struct compressed_exchange {
    tutti_compression how;
    struct places places;
    tutti_comm *here, *across;                          /* here: NULL where nothing is added up before */
    int ranks, sides, side;                             /* side: mine */
    size_t *lengths, *offsets;                          /* [here]: room for what is added up there */
};
/* Collective: TUTTI_MISMATCH is the caller's to find. exchange_finish is due in every case. */
tutti_status exchange_init(struct compressed_exchange *exchange, const tutti_compression *how, tutti_comm *all);
void exchange_finish(struct compressed_exchange *exchange);
void exchange_abandon(struct compressed_exchange *exchange);       /* others are not to wait for this rank */
tutti_status exchange_check(const tutti_compression *how);
uint64_t exchange_digest(const tutti_compression *how);
int exchange_rank(const struct compressed_exchange *exchange, int side);

/* What is on its way of one array: a packed slice of up to `count` numbers for each side, and one from each. */
struct packed_slices {
    char *out, *in;
    size_t slot, back, room; /* bytes of a packed slice, there, back, and at most: at most */
    const void **sources;                               /* [sides] in `in` */
    size_t *given, *taken, *offsets; /* [sides] bytes for each side, from each, and where they lie */
    size_t sent;                                        /* bytes that others were given of this array */
};
tutti_status packed_fit(struct packed_slices *packed, const struct compressed_exchange *exchange,
    size_t count); /* begun with zeros */
void packed_finish(struct packed_slices *packed);
/* Numbers, which begin at `first` of their array. Chance follows from the seed and `turn`, which are the same on all
   ranks. */
struct numbers { void *at; size_t count, first; tutti_dtype dtype; uint64_t turn; };
/* What stays on this rank of numbers that are packed, or NULL. */
struct kept_numbers { float *lost, *momentum; };
static inline struct kept_numbers kept_from(struct kept_numbers kept, size_t first)
{
    return (struct kept_numbers){ kept.lost ? kept.lost + first : NULL, kept.momentum ? kept.momentum + first : NULL };
}
size_t exchange_kept(const struct compressed_exchange *exchange, size_t count); /* numbers that are kept of so many */
/* Uses `array`, which has exchange_kept() numbers. */
struct kept_numbers exchange_keep(const struct compressed_exchange *exchange, float *array, size_t count);
/* For a side, or back from mine to all. Momentum changes what is packed. */
void packed_write(struct packed_slices *packed, const struct compressed_exchange *exchange, int side,
    struct numbers from, struct kept_numbers kept);
void packed_write_back(struct packed_slices *packed, const struct compressed_exchange *exchange, struct numbers from,
    float *lost);
/* Where slices are packed in as many bytes as it takes, sides tell each other first how many; then they send. */
bool exchange_sends_lengths(const struct compressed_exchange *exchange);
tutti_status packed_send_lengths(struct packed_slices *packed, const struct compressed_exchange *exchange,
    tutti_request *request);
tutti_status packed_send(struct packed_slices *packed, const struct compressed_exchange *exchange,
    tutti_request *request);
/* The average over all ranks of what came from all sides. INTERNAL, here and below: what a rank has sent cannot be, and
   the text names it. */
tutti_status packed_average(const struct packed_slices *packed, const struct compressed_exchange *exchange,
    struct numbers to);
/* What is packed to go back, to all sides; then that of a side. */
tutti_status packed_share(struct packed_slices *packed, const struct compressed_exchange *exchange);
tutti_status packed_read(const struct packed_slices *packed, const struct compressed_exchange *exchange, int side,
    struct numbers to);
