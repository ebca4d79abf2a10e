/* splitmix64 (Steele, Lea and Flood, 2014): the random numbers of tests, the same everywhere for a seed. */
#pragma once
#include <stdint.h>

static inline uint64_t random_mixed(uint64_t z)         /* its output function */
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static inline uint64_t random_next(uint64_t *state) { return random_mixed(*state += 0x9e3779b97f4a7c15u); }
