/* How long packed numbers are: what both sides of a connection must agree on, whatever their instruction sets. */
#include "kernels/compress.h"

enum { PLACED_BYTES = sizeof(float) + sizeof(uint32_t) };

size_t packing_kept(const struct packing *how, size_t count)
{
    size_t kept = (size_t)how->kept * count / PACKING_GROUP;
    return kept ? kept : 1;
}
static size_t bytes_of_group(const struct packing *how, size_t count)
{
    size_t scales = (count + PACKING_BLOCK - 1) / PACKING_BLOCK * sizeof(float);
    if (count == 0) return 0;
    switch (how->form) {
    case PACKING_FLOAT16:
    case PACKING_BFLOAT16: return count * sizeof(uint16_t);
    case PACKING_INT8: return scales + count;
    case PACKING_INT4: return scales + (count + 1) / 2;
    default: return packing_kept(how, count) * sizeof(float);
    }
}
static size_t aligned(size_t bytes) { return (bytes + 3) / 4 * 4; }
size_t packing_bytes(const struct packing *how, size_t count)
{
    if (how->form == PACKING_TOPK) return count ? packing_kept(how, count) * PLACED_BYTES : 0;
    return count / PACKING_GROUP * aligned(bytes_of_group(how, PACKING_GROUP))
        + aligned(bytes_of_group(how, count % PACKING_GROUP));
}
