/* Slices of gradients that travel packed. Where hosts have as many ranks each, the ranks of a host add theirs up first
 * (`here`), and only sums cross between hosts, among the ranks of one index; else among all. Those are the sides of a
 * crossing: each brings to every other side what it has of that side's slice. */
#pragma once
#include "include/tutti_zero.h"
#include "kernels/compress.h"
#include "zero/places.h"

struct crossing {
    tutti_compression how;
    struct places places;
    tutti_comm *here, *across;                          /* here: NULL where nothing is added up before */
    int ranks, sides, side;                             /* side: mine */
    size_t *lengths, *offsets;                          /* [here]: room for what is added up there */
};
/* Collective: TUTTI_MISMATCH is the caller's to find. crossing_finish is due in every case. */
tutti_status crossing_init(struct crossing *crossing, const tutti_compression *how, tutti_comm *all);
void crossing_finish(struct crossing *crossing);
void crossing_abandon(struct crossing *crossing);       /* others are not to wait for this rank */
tutti_status crossing_check(const tutti_compression *how);
uint64_t crossing_digest(const tutti_compression *how);
int crossing_rank(const struct crossing *crossing, int side);

/* What is on its way of one array: a packed slice of up to `count` numbers for each side, and one from each. */
struct parcel {
    char *out, *in;
    size_t slot, back, room;                            /* bytes of a packed slice, there, back, and at most: at most */
    const void **sources;                               /* [sides] in `in` */
    size_t *given, *taken, *offsets;                    /* [sides] bytes for each side, from each, and where they lie */
    size_t sent;                                        /* bytes that others were given of this array */
};
tutti_status parcel_fit(struct parcel *parcel, const struct crossing *crossing, size_t count);  /* begun with zeros */
void parcel_finish(struct parcel *parcel);
/* Numbers, which begin at `first` of their array. Chance follows from the seed and `turn`, which are the same on all
   ranks. */
struct numbers { void *at; size_t count, first; tutti_dtype dtype; uint64_t turn; };
/* What stays on this rank of numbers that are packed, or NULL. */
struct kept { float *lost, *momentum; };
static inline struct kept kept_from(struct kept kept, size_t first)
{
    return (struct kept){ kept.lost ? kept.lost + first : NULL, kept.momentum ? kept.momentum + first : NULL };
}
size_t crossing_kept(const struct crossing *crossing, size_t count);   /* numbers that are kept of so many */
struct kept crossing_keep(const struct crossing *crossing, float *array, size_t count);         /* in such an array */
/* For a side, or back from mine to all. Momentum changes what is packed. */
void parcel_pack(struct parcel *parcel, const struct crossing *crossing, int side, struct numbers from,
    struct kept kept);
void parcel_pack_back(struct parcel *parcel, const struct crossing *crossing, struct numbers from, float *lost);
/* Where slices are packed in as many bytes as it takes, sides tell each other first how many; then they send. */
bool crossing_tells(const struct crossing *crossing);
tutti_status parcel_tell(struct parcel *parcel, const struct crossing *crossing, tutti_request *request);
tutti_status parcel_send(struct parcel *parcel, const struct crossing *crossing, tutti_request *request);
/* The average over all ranks of what came from all sides. INTERNAL, here and below: what a rank has sent cannot be, and
   the text names it. */
tutti_status parcel_average(const struct parcel *parcel, const struct crossing *crossing, struct numbers to);
/* What is packed to go back, to all sides; then that of a side. */
tutti_status parcel_share(struct parcel *parcel, const struct crossing *crossing);
tutti_status parcel_unpack(const struct parcel *parcel, const struct crossing *crossing, int side, struct numbers to);
