/* The sizes of packed numbers, and their validation. Both ends of a connection must agree on them, whatever their
   instruction sets. */
#include "kernels/compress.h"
#include <string.h>

enum { PLACED_BYTES = sizeof(float) + sizeof(uint32_t), HEAD_BYTES = sizeof(uint32_t) };

size_t packing_count_kept(const struct packing *how, size_t count)
{
    size_t kept = (size_t)how->kept * count / PACKING_GROUP;
    return kept ? kept : 1;
}
/* Returns the packed bytes of `count` numbers of one group, with the scales of integer forms. */
static size_t packing_group_bytes(const struct packing *how, size_t count)
{
    size_t scales = (count + PACKING_BLOCK - 1) / PACKING_BLOCK * sizeof(float);
    if (count == 0) return 0;
    switch (how->form) {
    case PACKING_FLOAT16:
    case PACKING_BFLOAT16: return count * sizeof(uint16_t);
    case PACKING_INT8: return scales + count;
    case PACKING_INT4: return scales + (count + 1) / 2;
    default: return packing_count_kept(how, count) * sizeof(float);
    }
}
static size_t bytes_round_up(size_t bytes) { return (bytes + 3) / 4 * 4; }
size_t packing_bytes(const struct packing *how, size_t count)
{
    size_t head = how->form == PACKING_THRESHOLD ? HEAD_BYTES : 0;
    if (how->form == PACKING_TOPK || how->form == PACKING_THRESHOLD)
        return count ? head + packing_count_kept(how, count) * PLACED_BYTES : 0;
    return count / PACKING_GROUP * bytes_round_up(packing_group_bytes(how, PACKING_GROUP))
        + bytes_round_up(packing_group_bytes(how, count % PACKING_GROUP));
}
size_t packing_length(const struct packing *how, const void *packed, size_t count)
{
    uint32_t kept;
    if (how->form != PACKING_THRESHOLD || count == 0) return packing_bytes(how, count);
    memcpy(&kept, packed, sizeof kept);
    return HEAD_BYTES + kept * (size_t)PLACED_BYTES;
}
/* True if the places are below `count` and their strips ascend. */
static bool packing_places_are_valid(const char *places, size_t kept, size_t count)
{
    uint32_t place, strip = 0;
    bool sound = true;
    for (size_t i = 0; i < kept; i++) {
        memcpy(&place, places + i * sizeof place, sizeof place);
        sound &= place < count && place / PACKING_STRIP >= strip;
        strip = place / PACKING_STRIP;
    }
    return sound;
}
bool packing_is_valid(const struct packing *how, const void *packed, size_t bytes, size_t count)
{
    const char *numbers = packed;
    size_t kept = packing_count_kept(how, count);
    uint32_t said;
    if (count == 0) return true;
    if (how->form == PACKING_THRESHOLD) {
        if (bytes < HEAD_BYTES) return false;
        memcpy(&said, packed, sizeof said);
        if (said > kept || bytes != HEAD_BYTES + said * (size_t)PLACED_BYTES) return false;
        kept = said;
        numbers += HEAD_BYTES;
    } else if (bytes < packing_bytes(how, count)) return false;
    bool placed = how->form == PACKING_TOPK || how->form == PACKING_THRESHOLD;
    return !placed || packing_places_are_valid(numbers + kept * sizeof(float), kept, count);
}
