/* A choice as a number, by which ranks exchange choices, and as a text for the log. */
#pragma once
#include "backend/tuning/selection.h"

enum { CHOICE_BITS = 20 };
/* Encodes all of a choice but its cost in CHOICE_BITS bits; never 0. Its tile must be a power of two. */
uint32_t choice_encode(const struct choice *choice);
/* Decodes a choice of a collective. False: the code is invalid, so the shared memory that held it is corrupt. */
bool choice_decode(uint32_t code, enum collective collective, struct choice *out);
/* Replaces the predicted *choice by the one that a tuner's code means. is_open: private tensors can be read. False: the
   code is 0 or invalid, and *choice stays. */
bool choice_take_candidate(uint32_t code, bool is_open, struct choice *choice);
/* True if the choice with that code selects late, or reads private tensors. Code 0 gives false. */
bool choice_code_selects_late(uint32_t code);
bool choice_code_reads(uint32_t code);
enum { CHOICE_TEXT_BYTES = 64 };
/* Formats a choice as algorithm, bytes of a tile x slots, as in "two_shot 256Kx3 stored". Words may follow: single
   (reads_private), stored (ordinary_stores), short (short_ring), late (selects_late). */
void choice_format(const struct choice *choice, char out[CHOICE_TEXT_BYTES]);
