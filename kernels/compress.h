/* Packs gradients in fewer bytes.
 *     FLOAT16, BFLOAT16   Every number, rounded to nearest. Too large numbers become the largest finite number.
 *     INT8, INT4          Every number, as an integer of -127 .. 127 or -7 .. 7 times a scale that 128 numbers share.
 *     TOPK                The numbers of largest magnitude, `kept` of each 1,024 on average, and their places. Numbers
 *                         that differ by less than a thousandth (a thirtieth, if most are zeros) count as equal.
 *     THRESHOLD           The numbers of at least the magnitude `threshold`, and their places. The length varies. If
 *                         they are more than TOPK keeps, the result is that of TOPK.
 *     RANDOMK             `kept` of each group of 1,024 numbers: one of each of `kept` equal parts, drawn by `seed`.
 * The last group may be shorter. It keeps the same share, and at least one number.
 *
 * The residual can be kept and added the next time (error feedback). NaNs and infinities have no residual. TOPK and
 * THRESHOLD pack them before all other numbers, as far as they fit. In INT8 and INT4 their whole block of 128 numbers
 * arrives as NaN. In RANDOMK they arrive if they are drawn; otherwise the first drawn number of their group arrives as
 * NaN.
 *
 * Results are bit-identical on all instruction sets. */
#pragma once
#include "include/tutti.h"

/* `kept` of each group of numbers are packed. The numbers of a block share a scale. Packed places (indices in the
   array) ascend from strip to strip, but not within a strip. */
enum { PACKING_GROUP = 1024, PACKING_BLOCK = 128, PACKING_STRIP = 256 };
enum packing_form {
    PACKING_FLOAT16,
    PACKING_BFLOAT16,
    PACKING_INT8,
    PACKING_INT4,
    PACKING_TOPK,
    PACKING_RANDOMK,
    PACKING_THRESHOLD,
    PACKING_FORMS
};
/* The form of packed numbers, and its options. */
struct packing {
    enum packing_form form;
    /* TOPK and RANDOMK pack this many numbers of each group, THRESHOLD at most this many. */
    int kept;                                           /* 1 .. PACKING_GROUP */
    /* INT8 and INT4 round up or down at random, so that the mean of many roundings is the number. */
    bool stochastic;
    /* Random choices follow from the seed. RANDOMK must unpack with the seed of packing. */
    uint32_t seed;
    /* THRESHOLD packs numbers of at least this magnitude. */
    float threshold;                                    /* above 0 */
};
/* Returns the bytes of `count` packed numbers; for THRESHOLD the most that they can have. The result depends only on
   form and kept. */
size_t packing_bytes(const struct packing *how, size_t count);
/* Returns how many of `count` numbers are packed by a form that selects numbers; for THRESHOLD the most that can be
   packed. */
size_t packing_count_kept(const struct packing *how, size_t count);
/* Returns the actual bytes of `packed`, which has `count` numbers that this rank has packed. */
size_t packing_length(const struct packing *how, const void *packed, size_t count);
/* Returns true if `bytes` received bytes are a valid packing of `count` numbers. Unpacking an invalid packing is safe
   if it has packing_bytes of room, but gives wrong sums. */
bool packing_is_valid(const struct packing *how, const void *packed, size_t bytes, size_t count);
/* Packs from[i] + residual[i] for i < count, and leaves in residual[i] what the packed number lacks; residual may be
   NULL. `first` is the number of from[0] in its array, for random choices. `packed` must be aligned to 4 bytes. */
typedef void pack_function(void *packed, const void *from, float *residual, size_t count, const struct packing *how,
    uint64_t first);
/* Computes to[i] = factor * (the sum of number i of packed[0], packed[1], … packed[sources - 1], in float32), rounded
   once, for i < count. `how` and `first` must be those of packing. */
typedef void unpack_function(void *to, const void *const *packed, int sources, size_t count, const struct packing *how,
    uint64_t first, float factor);
/* Return the function that packs from, or unpacks to, this type, or NULL for types other than FLOAT32 and BFLOAT16. */
pack_function *pack_find(tutti_dtype dtype);
unpack_function *unpack_find(tutti_dtype dtype);
