/* A set of a plan's members, a bit for each: member m is bit m % 64 of word m / 64. NULL is the empty set, and mask_all
 * is the full set of any number of members. The creator owns the words. Bits beyond the last member are ignored. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The full set, compared by address. */
extern const uint64_t mask_all[1];

/* Returns how many words a set of this many members has. */
static inline int mask_words(int members) { return (members + 63) / 64; }
static inline bool mask_has(const uint64_t *mask, int member)
{
    return mask == mask_all || (mask && mask[member / 64] >> (member % 64) & 1);
}
static inline void mask_add(uint64_t *words, int member) { words[member / 64] |= (uint64_t)1 << (member % 64); }
/* Returns word number `word` of the set, without bits beyond the last member. It accepts NULL and mask_all. */
uint64_t mask_word(const uint64_t *mask, int word, int members);
/* True if both sets have the same members. */
bool mask_equal(const uint64_t *a, const uint64_t *b, int members);
/* True if the set is not empty. */
bool mask_any(const uint64_t *mask, int members);
bool mask_is_full(const uint64_t *mask, int members);
/* Copies a set into mask_words(members) words. */
void mask_copy(uint64_t *words, const uint64_t *mask, int members);
