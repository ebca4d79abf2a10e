/* Sets of members are compared and copied word by word. The empty and the full set have no words; mask_word supplies
 * them. */
#include "backend/schedule/mask.h"

const uint64_t mask_all[1] = { UINT64_MAX };

uint64_t mask_word(const uint64_t *mask, int word, int members)
{
    int bits = members - 64 * word;
    uint64_t valid = bits >= 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1;
    return mask ? (mask == mask_all ? valid : mask[word] & valid) : 0;
}
bool mask_equal(const uint64_t *a, const uint64_t *b, int members)
{
    for (int w = 0; a != b && w < mask_words(members); w++)
        if (mask_word(a, w, members) != mask_word(b, w, members)) return false;
    return true;
}
bool mask_any(const uint64_t *mask, int members) { return !mask_equal(mask, NULL, members); }
bool mask_is_full(const uint64_t *mask, int members) { return mask_equal(mask, mask_all, members); }
void mask_copy(uint64_t *words, const uint64_t *mask, int members)
{
    for (int w = 0; w < mask_words(members); w++) words[w] = mask_word(mask, w, members);
}
