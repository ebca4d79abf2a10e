/* Mixtures of experts: where the rows of tokens go, and their scatter, gather and dot products; tutti.h documents the
   calls. The caller has checked that pointers to data are not NULL. */
#pragma once
#include "include/tutti_groups.h"

tutti_status experts_place(const int64_t *expert, size_t tokens, int choices, int experts, uint64_t capacity,
    int64_t *place, uint64_t *counts);
tutti_status experts_compute_offsets(const uint64_t *counts, int ranks, int experts, uint64_t padded, uint64_t *first,
    uint64_t *rows);
tutti_status experts_scatter(const tutti_experts_rows *rows, const void *from, const float *weight);
tutti_status experts_gather(const tutti_experts_rows *rows, void *to, const float *weight);
tutti_status experts_dot(const tutti_experts_rows *rows, const void *with, float *out);
