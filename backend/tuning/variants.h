/* Variants of a choice, which differ from it in one thing. The tuner tests them. */
#pragma once
#include "backend/tuning/selection.h"

/* Numbers of the variants. 0 changes how slots are written (if is_paced), and 1 how soon slots are reused. 2 to 4
   change the tile size (double, half, quarter), 5 and 6 the tiles in flight (one more, one less). READ_VARIANT changes
   whether open tensors are read. LATE_SELECTION_VARIANT selects late, after looking where tensors lie. FIRST_ALGORITHM
   and later ones take another algorithm. In the last three kinds the chooser determines tile and slots, and in the
   first two of these the algorithm, too. Variants that can change the time most come last, because by then the
   incumbent has improved. */
enum { READ_VARIANT = 7, LATE_SELECTION_VARIANT, FIRST_ALGORITHM, VARIANTS = FIRST_ALGORITHM + 4 };
/* The limits of the variants of a call. */
struct variant_limits {
    struct chooser *chooser;
    /* True: slots may be written by ordinary stores or around the cache (execute/pace.h). */
    bool is_paced;
    /* The highest cost of a variant, divided by the least cost. */
    double max_cost_ratio;
    /* The placement that private tensors could have if the call selected late, or if ranks let peers read them. */
    enum placement_kind possible;
};
/* Makes variant `number` of the choice `from`. *exists is false if the variant is impossible, has no effect, or costs
   too much. NO_MEMORY. */
tutti_status choice_make_variant(const struct variant_limits *limits, const struct question *question,
    const struct choice *from, int number, struct choice *out, bool *exists);
