/* Experts as tutti.h has them: where the rows of tokens go, and what is done with them there. Pointers given here are
   not NULL where something lies behind them. */
#pragma once
#include "include/tutti.h"

tutti_status experts_place(const int64_t *expert, size_t tokens, int choices, int experts, uint64_t capacity,
    int64_t *place, uint64_t *counts);
tutti_status experts_offsets(const uint64_t *counts, int ranks, int experts, uint64_t padded, uint64_t *first,
    uint64_t *rows);
tutti_status experts_scatter(const tutti_experts_rows *r, const void *from, const float *weight);
tutti_status experts_gather(const tutti_experts_rows *r, void *to, const float *weight);
tutti_status experts_dot(const tutti_experts_rows *r, const void *with, float *out);
