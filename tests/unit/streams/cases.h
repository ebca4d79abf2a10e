/* Operations with random data, and the results that they must have, bit for bit. */
#pragma once
#include "backend/collectives/collectives.h"
#include "tests/unit/streams/ranks.h"

/* An operation that all ranks call. `count`: elements of a part. `seed` gives the data. */
struct stream_case {
    const struct algorithm *algorithm;
    tutti_dtype dtype;
    tutti_op op;
    size_t count, tile_bytes;
    int root, slots;
    bool in_place;
    uint64_t seed;
};
/* A case on one rank, with its tensors. */
struct case_run {
    struct stream_case given;
    struct plan plan;
    CUdeviceptr memory, input, output;
    unsigned char *sent;
    uint64_t number;
};
/* True if the algorithm runs on one host without messages. */
bool algorithm_is_for_streams(const struct stream_rank *rank, const struct algorithm *algorithm);
/* Allocates and fills the tensors. */
void case_prepare(const struct stream_rank *rank, const struct stream_case *given, struct case_run *out);
/* Enqueues the case, and checks the bound of its calls. */
void case_enqueue(struct stream_rank *rank, struct case_run *run, CUstream stream);
/* Tries once to enqueue the case as a sum of float32. */
tutti_status case_try_sum(struct stream_rank *rank, struct case_run *run, CUstream stream);
/* Frees the tensors and the plan. */
void case_free(struct case_run *run);
/* Checks the output, and that an input that is not in place is unchanged; frees the case. */
void case_check(struct stream_rank *rank, struct case_run *run);
/* Chooses a case from random numbers. */
struct stream_case case_draw(const struct stream_rank *rank, uint64_t *random);
/* Prepares `count` cases, enqueues all on these streams in turn, waits for all, and checks them. */
void cases_run(struct stream_rank *rank, const struct stream_case *cases, int count, CUstream *streams,
    int stream_count);
