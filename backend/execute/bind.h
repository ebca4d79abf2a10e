/* From names to addresses: where a chunk's tile lies in this operation, and the arithmetic on it. Part of the executor.
   */
#pragma once
#include "backend/execute/execute.h"

void bind_operands(struct executor *x);                 /* from launch; decides tiles unless counts are uneven */
void bind_again(struct executor *x);                    /* the same, of what is cut and fixed as it was */
void bind_cut(struct executor *x, size_t chunk_bytes);  /* chunk_bytes: the largest chunk of any rank */
/* a: one of the program's spans */
struct piece bind_locate(const struct executor *x, const struct span *a, int index, int tile);
/* False: what a peer has cannot be read; see fetch.h. */
bool bind_compute(struct executor *x, const struct step *t, int tile);
/* to[0] = to[1] = … = from[0] + from[1] + …, of one piece each */
void bind_compute_piece(const struct executor *x, const struct step *t, void *const *to, const void *const *from,
    const struct part *part);
void bind_compute_fixed(const struct executor *x, int step);            /* of a program that is_fixed */
