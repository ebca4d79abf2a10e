/* A set of a plan's members, a bit for each: member m is bit m % 64 of word m / 64. NULL is the empty set, and mask_all
 * is the full set of any number of members. The creator owns the words. Bits beyond the last member are ignored. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

extern const uint64_t mask_all[1];

static inline int mask_words(int members) { return (members + 63) / 64; }
static inline bool mask_has(const uint64_t *mask, int member)
{
    return mask == mask_all || (mask && mask[member / 64] >> (member % 64) & 1);
}
static inline void mask_add(uint64_t *words, int member) { words[member / 64] |= (uint64_t)1 << (member % 64); }
/* Returns a word of the set. It accepts NULL and mask_all. */
uint64_t mask_word(const uint64_t *mask, int word, int members);
bool mask_equal(const uint64_t *a, const uint64_t *b, int members);
bool mask_any(const uint64_t *mask, int members);
bool mask_is_full(const uint64_t *mask, int members);
void mask_copy(uint64_t *words, const uint64_t *mask, int members);
