/* Decides when a candidate replaces the incumbent, from the times of calls in alternating blocks, and when a test of
   the candidate ends early. All times are medians of blocks, in the same unit. */
#pragma once
#include <stdbool.h>

/* This many samples of the candidate's first block suffice to find it hopeless. */
enum { AB_TEST_FEW_SAMPLES = 4 };
/* Returns true if the candidate wins: its slowest block is faster than the incumbent's fastest, and its fastest block
   by more than 3 %. */
static inline bool ab_test_is_won(double incumbent_fastest, double candidate_fastest, double candidate_slowest)
{
    return candidate_slowest < incumbent_fastest && candidate_fastest < 0.97 * incumbent_fastest;
}
/* Returns true if the candidate is so slow that its test may end early: more than 10 % slower after its first block, or
   30 % after AB_TEST_FEW_SAMPLES (`has_few_samples`). */
static inline bool ab_test_is_hopeless(double incumbent_ns, double candidate_ns, bool has_few_samples)
{
    return candidate_ns > (has_few_samples ? 1.3 : 1.1) * incumbent_ns;
}
