/* The fields of a code, from its lowest bit: the flags, the slots, the logarithm of the tile, and the row in the table
   of algorithms. */
#include "backend/tuning/choice_code.h"
#include "backend/collectives/collectives.h"
#include "backend/host/segment.h"
#include <stdio.h>

enum { ROW_BITS = 7, TILE_BITS = 5, SLOT_BITS = 4, FLAG_BITS = 4 };
_Static_assert(ROW_BITS + TILE_BITS + SLOT_BITS + FLAG_BITS == CHOICE_BITS, "all of it");
/* Removes the lowest `bits` bits from *code and returns them. */
static uint32_t code_take_bits(uint32_t *code, int bits)
{
    uint32_t field = *code & ((1u << bits) - 1);
    *code >>= bits;
    return field;
}
uint32_t choice_encode(const struct choice *choice)
{
    uint32_t code = (uint32_t)(choice->algorithm - collectives_table);
    code = code << TILE_BITS | (uint32_t)__builtin_ctzll(choice->tile_bytes);
    code = code << SLOT_BITS | (uint32_t)choice->slots;
    uint32_t flags = (uint32_t)choice->selects_late << 3 | (uint32_t)choice->short_ring << 2
        | (uint32_t)choice->reads_private << 1 | choice->ordinary_stores;
    return code << FLAG_BITS | flags;
}
bool choice_decode(uint32_t code, enum collective collective, struct choice *out)
{
    *out = (struct choice){ .ordinary_stores = code_take_bits(&code, 1) };
    out->reads_private = code_take_bits(&code, 1);
    out->short_ring = code_take_bits(&code, 1);
    out->selects_late = code_take_bits(&code, 1);
    out->slots = (int)code_take_bits(&code, SLOT_BITS);
    out->tile_bytes = (size_t)1 << code_take_bits(&code, TILE_BITS);
    out->algorithm = collectives_table;
    while (out->algorithm->name && code) { out->algorithm++; code--; }
    const struct algorithm *algorithm = out->algorithm;
    return algorithm->name && algorithm->collective == collective && algorithm->host_memory && out->slots > 0
        && out->slots <= MAX_SLOTS;
}
bool choice_take_candidate(uint32_t code, bool is_open, struct choice *choice)
{
    struct choice candidate;
    if (!code || !choice_decode(code, choice->algorithm->collective, &candidate)) return false;
    candidate.reads_private &= is_open;
    *choice = candidate;
    return true;
}
bool choice_code_selects_late(uint32_t code) { return code >> 3 & 1; }
bool choice_code_reads(uint32_t code) { return code >> 1 & 1; }
void choice_format(const struct choice *choice, char out[CHOICE_TEXT_BYTES])
{
    snprintf(out, CHOICE_TEXT_BYTES, "%s %zuKx%d%s%s%s%s", choice->algorithm->name, choice->tile_bytes >> 10,
        choice->slots, choice->reads_private ? " single" : "", choice->ordinary_stores ? " stored" : "",
        choice->short_ring ? " short" : "", choice->selects_late ? " late" : "");
}
