/* The settings and algorithms that decide how a collective on one host runs, with which bench_regret compares the
 * library's choice. A setup is a value for each setting. Each group is made under one setup, and all groups exist side
 * by side. A variant of a row is a setup and an algorithm. */
#pragma once
#include "tests/bench/cases.h"

enum knob { TILE_BYTES, SLOTS, STREAMING, SINGLE_COPY, KNOBS };
/* asked: the settings have values, those with the numbers value[]. Otherwise all of them are left to the library. */
struct setup { bool asked; int value[KNOBS]; };
/* Numbers of setups: CHOICE leaves all to the library. SHORT is the first one with values, and the only one for rows of
   so few bytes that no setting matters. */
enum { CHOICE, SHORT, MOST_SETUPS = 128, MOST_VARIANTS = 512, VARIANT_BYTES = 64 };
/* Writes all setups to `out`, and returns their number. */
int setups_list(bool single_copy, struct setup out[MOST_SETUPS]);
/* Applies the setup to communicators that this process makes from now on. */
void setup_apply(const struct setup *setup);

/* setup: its number. algorithm: NULL lets the library choose. */
struct variant { int setup; const char *algorithm; };
/* Writes CHOICE and all variants that can differ for this row to `out`, and returns their number. */
int variants_list(const struct bench_case *c, const struct setup *setups, int setup_count,
    struct variant out[MOST_VARIANTS]);
void variant_name(const struct variant *v, const struct setup *setups, char out[VARIANT_BYTES]);
