/* Of two ways to do the same, measured in blocks that take turns: when that takes the place of this, which ran so far.
   What is this much better wins; what is so much worse is not looked at longer. */
#pragma once
#include <stdbool.h>

enum { AB_TEST_FEW_SAMPLES = 4 }; /* of the first block of that; they show what is hopeless */
/* Each block of that is better than each of this, and its best by 3 %. */
static inline bool ab_test_is_won(double this_least, double that_least, double that_most)
{
    return that_most < this_least && that_least < 0.97 * this_least;
}
/* After its first block, or a few samples of it. */
static inline bool ab_test_is_hopeless(double this_ns, double that_ns, bool few)
{
    return that_ns > (few ? 1.3 : 1.1) * this_ns;
}
