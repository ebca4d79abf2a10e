/* Decides when a candidate (`that`) replaces the current variant (`this`), from times measured in alternating blocks,
   and when a test of the candidate ends early. */
#pragma once
#include <stdbool.h>

/* This many samples of the candidate's first block suffice to find it hopeless. */
enum { AB_TEST_FEW_SAMPLES = 4 };
/* The candidate wins if each of its blocks is faster than each of the other variant's, and its best block by 3 %. */
static inline bool ab_test_is_won(double this_least, double that_least, double that_most)
{
    return that_most < this_least && that_least < 0.97 * this_least;
}
/* The candidate is hopeless if it is 10 % slower after its first block, or 30 % after a few samples. */
static inline bool ab_test_is_hopeless(double this_ns, double that_ns, bool few)
{
    return that_ns > (few ? 1.3 : 1.1) * this_ns;
}
