/* splitmix64 (Steele, Lea and Flood, 2014): random numbers for tests, which depend only on the seed. */
#pragma once
#include <stdint.h>

/* The output function of splitmix64: returns the random number for a state. */
static inline uint64_t random_mixed(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static inline uint64_t random_next(uint64_t *state) { return random_mixed(*state += 0x9e3779b97f4a7c15u); }
