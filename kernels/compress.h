/* Gradients in fewer bytes.
 *     FLOAT16, BFLOAT16   every number, rounded to nearest; what is too large becomes the largest there is
 *     INT8, INT4          every number, as an integer of -127 .. 127 or -7 .. 7 times a scale that 128 numbers share
 *     TOPK                the numbers of largest magnitude, `kept` of each 1,024 on average, and where they lie; those
 *                         that differ by less than a thousandth (a thirtieth, if most are zeros) count as equal
 *     THRESHOLD           the numbers of at least the magnitude `threshold`, and where they lie, in as many bytes as
 *                         it takes; if they are more than TOPK keeps, what TOPK does
 *     RANDOMK             `kept` of each group of 1,024, one from each of as many equal parts, drawn by `seed`
 * The last group may be shorter: it keeps the same share, and at least one.
 *
 * What packing loses can be kept and added the next time (error feedback). What is no number, or infinite, is not: it
 * arrives as it is, in TOPK and THRESHOLD before all others, as far as it is kept; in INT8 and INT4 the 128 numbers
 * around it arrive as NaN; in RANDOMK it arrives when it is drawn, else the first that is drawn of its group arrives as
 * NaN.
 *
 * The same bits on all instruction sets. */
#pragma once
#include "include/tutti.h"

/* block: what shares a scale; strip: places ascend from one to the next, but not within */
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
struct packing {
    enum packing_form form;
    int kept;                                           /* TOPK, RANDOMK, THRESHOLD at most: 1 .. PACKING_GROUP */
    bool stochastic; /* INT8, INT4: up or down by chance, so that the mean is right */
    uint32_t seed;                                      /* of chance: RANDOMK unpacks with what it was packed with */
    float threshold;                                    /* above 0 */
};
/* Of `count` numbers, packed: bytes, of THRESHOLD at most; depends on form and kept alone. Of a group of `count`: what
   is kept of it. */
size_t packing_bytes(const struct packing *how, size_t count);
size_t packing_kept(const struct packing *how, size_t count);
/* Of what is packed there: its bytes. */
size_t packing_length(const struct packing *how, const void *packed, size_t count);
/* What has come from elsewhere, in so many bytes, can be what `count` numbers were packed to. What cannot be is safe to
   unpack where it has packing_bytes of room, but its sums are wrong. */
bool packing_is_sound(const struct packing *how, const void *packed, size_t bytes, size_t count);
/* Packs from[i] + lost[i], and leaves in lost[i] what was not packed; lost may be NULL. `first` is the number by which
   chance knows from[0]. `packed` is aligned to 4 bytes. */
typedef void pack_function(void *packed, const void *from, float *lost, size_t count, const struct packing *how,
    uint64_t first);
/* to[i] = factor * (the sum over the sources, in their order, in float32), rounded once. */
typedef void unpack_function(void *to, const void *const *packed, int sources, size_t count, const struct packing *how,
    uint64_t first, float factor);
/* NULL for other types than FLOAT32 and BFLOAT16. */
pack_function *pack_find(tutti_dtype dtype);
unpack_function *unpack_find(tutti_dtype dtype);
