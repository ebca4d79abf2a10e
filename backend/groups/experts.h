/* Mixtures of experts: where the rows of tokens go, and their scatter, gather and dot products; tutti_groups.h
   documents the calls. The caller has checked that pointers to data are not NULL. */
#pragma once
#include "include/tutti_groups.h"

/* Numbers this rank's rows of each expert from 0: place[tokens][choices] gets the number of the row, or -1 if the
   choice has none; counts[experts] gets how many rows each expert has. */
tutti_status experts_place(const int64_t *expert, size_t tokens, int choices, int experts, uint64_t capacity,
    int64_t *place, uint64_t *counts);
/* Sets first[ranks][experts], the first row that each source rank uses for an expert at the expert's owner, and
   rows[ranks], the rows of each owner, from counts[ranks][experts]. padded: the rows of each source and expert, or 0:
   as many as counted. */
tutti_status experts_compute_offsets(const uint64_t *counts, int ranks, int experts, uint64_t padded, uint64_t *first,
    uint64_t *rows);
/* Copies each token to the rows of its choices, or multiplies it by the weights of its choices (NULL: none).
   experts_gather sums a token's rows, with weights. experts_dot computes the dot product of each row with its token of
   `with`. */
tutti_status experts_scatter(const tutti_experts_rows *rows, const void *from, const float *weight);
tutti_status experts_gather(const tutti_experts_rows *rows, void *to, const float *weight);
tutti_status experts_dot(const tutti_experts_rows *rows, const void *with, float *out);
