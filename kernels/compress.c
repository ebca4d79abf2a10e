/* The sizes of packed numbers, and their validation. Both ends of a connection must agree on them, whatever their
   instruction sets. */
#include "kernels/compress.h"
#include <string.h>

/* A selected number takes PLACED_BYTES: its value and its place. THRESHOLD begins with their count in HEAD_BYTES. */
enum { PLACED_BYTES = sizeof(float) + sizeof(uint32_t), HEAD_BYTES = sizeof(uint32_t) };

size_t packing_count_kept(const struct packing *how, size_t count)
{
    size_t kept = (size_t)how->kept * count / PACKING_GROUP;
    return kept ? kept : 1;
}
/* Returns the packed bytes of one group of `count` numbers, with the scales of integer forms. Not for TOPK and
   THRESHOLD, which pack whole arrays. */
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
/* Rounds up to a multiple of 4. */
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
/* Returns true if the `kept` places (uint32_t, unaligned) are below `count` and their strips ascend. */
static bool packing_places_are_valid(const char *places, size_t kept, size_t count)
{
    uint32_t place, strip = 0;
    bool is_valid = true;
    for (size_t i = 0; i < kept; i++) {
        memcpy(&place, places + i * sizeof place, sizeof place);
        is_valid &= place < count && place / PACKING_STRIP >= strip;
        strip = place / PACKING_STRIP;
    }
    return is_valid;
}
bool packing_is_valid(const struct packing *how, const void *packed, size_t bytes, size_t count)
{
    const char *numbers = packed;
    size_t kept = packing_count_kept(how, count);
    uint32_t sent_count;
    if (count == 0) return true;
    if (how->form == PACKING_THRESHOLD) {
        if (bytes < HEAD_BYTES) return false;
        memcpy(&sent_count, packed, sizeof sent_count);
        if (sent_count > kept || bytes != HEAD_BYTES + sent_count * (size_t)PLACED_BYTES) return false;
        kept = sent_count;
        numbers += HEAD_BYTES;
    } else if (bytes < packing_bytes(how, count)) return false;
    bool has_places = how->form == PACKING_TOPK || how->form == PACKING_THRESHOLD;
    return !has_places || packing_places_are_valid(numbers + kept * sizeof(float), kept, count);
}
