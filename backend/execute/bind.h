/* From names to addresses: where a chunk's tile lies in this operation, and the arithmetic on it. Part of the executor.
   */
#pragma once
#include "backend/execute/execute.h"

void bind_operands(struct executor *x);                 /* from launch; decides tiles unless counts are uneven */
void bind_cut(struct executor *x, size_t chunk_bytes);  /* chunk_bytes: the largest chunk of any rank */
/* a: one of the program's spans */
struct piece bind_locate(const struct executor *x, const struct span *a, int index, int tile);
void bind_compute(const struct executor *x, const struct step *t, int tile);
void bind_compute_fixed(const struct executor *x, int step);            /* of a program that is_fixed */
