/* Variants of a choice, which differ from it in one thing, and a code by which ranks exchange choices. */
#pragma once
#include "backend/tuning/selection.h"

enum { CHOICE_BITS = 20 };
/* Encodes all of a choice but its cost in CHOICE_BITS bits; never 0. Its tile must be a power of two. */
uint32_t choice_encode(const struct choice *choice);
/* Decodes it. False: the code is invalid, so the shared memory that held it is corrupt. */
bool choice_decode(uint32_t code, enum collective collective, struct choice *out);
/* Replaces the predicted choice by the candidate. `open`: private tensors can be read. False: the choice stays. */
bool choice_take_candidate(uint32_t code, bool open, struct choice *choice);
/* True if the choice with that code looks first, or reads open tensors. Code 0 gives false. */
bool choice_code_selects_late(uint32_t code);
bool choice_code_reads(uint32_t code);
enum { CHOICE_TEXT_BYTES = 64 };
/* Formats a choice as in "two_shot 256Kx3 stored". */
void choice_format(const struct choice *choice, char out[CHOICE_TEXT_BYTES]);

/* Numbers of the variants. 0 changes how slots are written (if `paced` allows both ways), and 1 how soon slots are
   reused. 2 to 4 change the tile size (double, half, quarter), 5 and 6 the tiles in flight (one more, one less).
   READ_VARIANT changes whether open tensors are read. LATE_SELECTION_VARIANT looks first where tensors lie.
   FIRST_ALGORITHM and later ones take another algorithm. The last three kinds are used as predicted. Variants that can
   change the time most come last, because by then the incumbent has improved. */
enum { READ_VARIANT = 7, LATE_SELECTION_VARIANT, FIRST_ALGORITHM, VARIANTS = FIRST_ALGORITHM + 4 };
struct variant_limits {
    struct chooser *chooser;
    bool paced;
    /* The highest cost of a variant, relative to the least cost. */
    double most;
    /* The placement that private tensors could have if the call looked first, or if ranks let peers read them. */
    enum placement_kind could_be;
};
/* Sets *exists to false if the variant is impossible, has no effect, or has a cost above `most`. NO_MEMORY. */
tutti_status choice_make_variant(const struct variant_limits *limits, const struct question *question,
    const struct choice *from, int number, struct choice *out, bool *exists);
