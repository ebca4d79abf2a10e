/* Variants of a choice, which differ from it in one thing. The tuner tests them. */
#pragma once
#include "backend/tuning/selection.h"

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
