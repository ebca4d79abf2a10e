/* What can be set that says how a collective on one host is worked on, and so what a choice can be compared with: a
 * table of settings, and the algorithms. Groups are made under one setup each and live side by side; a variant of a row
 * is a group and an algorithm. */
#pragma once
#include "tests/bench/cases.h"

enum knob { TILE_BYTES, SLOTS, STREAMING, SINGLE_COPY, KNOBS };
struct setup { bool asked; int value[KNOBS]; };         /* not asked: all is left to the library; else of its values */
/* The first, CHOICE, asks for nothing. SHORT is the only other one of rows that few bytes leave nothing to set for. */
enum { CHOICE, SHORT, MOST_SETUPS = 128, MOST_VARIANTS = 512, VARIANT_BYTES = 64 };
int setups_list(bool single_copy, struct setup out[MOST_SETUPS]);       /* how many                               */
void setup_apply(const struct setup *setup);            /* to communicators made from now on by this process      */

struct variant { int setup; const char *algorithm; };   /* NULL: what the library chooses                         */
/* CHOICE, then all that can differ for this row. */
int variants_list(const struct bench_case *c, const struct setup *setups, int setup_count,
    struct variant out[MOST_VARIANTS]);
void variant_name(const struct variant *v, const struct setup *setups, char out[VARIANT_BYTES]);
