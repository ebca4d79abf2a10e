/* tutti_groups: the arithmetic of parallel training: grids of ranks, schedules of pipelines, rows of experts.
 *
 * No function here communicates or needs a communicator. Statuses and errors are as in tutti.h. */
#pragma once
#include "tutti.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* ---- grids: groups of ranks for tensor, pipeline, data, … parallelism. Pure data, without communication ---- */
enum { TUTTI_GRID_AXES = 8, TUTTI_GRID_NAME = 8 };
/* A grid is a plain value without pointers. Its axes have the order of the string. */
typedef struct tutti_grid {
    int ranks, axes;
    int size[TUTTI_GRID_AXES];
    char name[TUTTI_GRID_AXES][TUTTI_GRID_NAME];
} tutti_grid;
/* order: names of up to 7 letters and digits, as in "tp-cp-ep-dp-pp". The first varies fastest: a rank is the sum of
   each index times the product of the sizes before it, as in Megatron-Core's RankGenerator. sizes: as in "tp=2,dp=4".
   An axis without a size has 1, and an axis outside the order must have 1. INVALID_ARGUMENT, with a text, also if the
   product of the sizes differs from `ranks`. */
TUTTI_API tutti_status tutti_grid_make(tutti_grid *out, const char *order, const char *sizes, int ranks);
/* Makes the grid of experts over the same ranks, in the same order. tp ranks share an expert, ep ranks have different
   ones, pp stays, dp has the remaining factor, and other axes have size 1. INVALID_ARGUMENT if its pipeline groups
   would differ from those of the dense grid. */
TUTTI_API tutti_status tutti_grid_experts(tutti_grid *out, const tutti_grid *dense, int tp, int ep);
/* Writes the index of a rank on each axis to out[axes]. */
TUTTI_API tutti_status tutti_grid_index(const tutti_grid *grid, int rank, int *out);
/* Ranks that differ only in the named axes form a group; names are as in "dp" or "tp-dp", in any order. Returns how
   many groups there are, and how many ranks each has. */
TUTTI_API tutti_status tutti_grid_groups(const tutti_grid *grid, const char *names, int *groups, int *size);
/* Writes the ranks of one group, ascending, to out[size]. The other indices, in the string's order, number groups. */
TUTTI_API tutti_status tutti_grid_group(const tutti_grid *grid, const char *names, int group, int *out);
/* Returns the group of a rank, and the rank's position in it. */
TUTTI_API tutti_status tutti_grid_find(const tutti_grid *grid, const char *names, int rank, int *group, int *place);
/* host: [ranks]. Returns the first group with ranks on several hosts, or -1, and the most hosts of any group. */
TUTTI_API tutti_status tutti_grid_straddles(const tutti_grid *grid, const char *names, const int *host, int *group,
    int *most);

/* ---- pipelines: the order in which each rank works on stages and microbatches. Pure data ---- */
/* BACKWARD computes the gradients of inputs and weights together. */
typedef enum tutti_work {
    TUTTI_FORWARD,
    TUTTI_BACKWARD,
    TUTTI_BACKWARD_INPUT,
    TUTTI_BACKWARD_WEIGHT,
    TUTTI_WORKS
} tutti_work;
typedef struct tutti_action { tutti_work work; int stage, microbatch; } tutti_action;
typedef struct tutti_pipeline tutti_pipeline;
/* Returns the name of schedule 0, 1, …, then NULL. */
TUTTI_API const char *tutti_pipeline_name(int index);
/* Makes the pipeline of a schedule. chunks is the number of stages of each rank. Schedules: "naive" (one microbatch at
   a time), "gpipe" (all forwards, then all backwards; Huang et al. 2019), "1f1b" (Narayanan et al. 2019), "interleaved"
   (several stages on each rank, in turns; Narayanan et al. 2021), "zb-h1" and "zb-v" (gradients of weights fill the
   gaps; zb-v has two stages on each rank, up the ranks and down again; Qi et al. 2023), "dualpipe-v" (the stages of
   zb-v, forwards and backwards in pairs; at least twice as many microbatches as ranks; DeepSeek-AI 2025).
   INVALID_ARGUMENT if the schedule excludes the numbers. */
TUTTI_API tutti_status tutti_pipeline_make(tutti_pipeline **out, const char *schedule, int ranks, int chunks,
    int microbatches);
/* Destroys the pipeline; NULL is allowed. */
TUTTI_API tutti_status tutti_pipeline_destroy(tutti_pipeline *pipeline);
/* Returns the rank that has a stage, or -1 if the stage does not exist. */
TUTTI_API int tutti_pipeline_rank(const tutti_pipeline *pipeline, int stage);
/* Returns the actions of a rank, in order, or NULL for an invalid rank. The pipeline owns them. */
TUTTI_API const tutti_action *tutti_pipeline_actions(const tutti_pipeline *pipeline, int rank, int *count);
/* Checks that every action occurs once, that the lists finish without a deadlock, and that each pair of ranks uses
   activations and gradients in the order in which they are sent. INVALID_ARGUMENT names the violation. */
TUTTI_API tutti_status tutti_pipeline_check(const tutti_pipeline *pipeline);
/* The times may have any unit. Each stage has a forward time, and backward times for its inputs and its weights. */
typedef struct tutti_pipeline_cost { const double *forward, *input, *weight; double message; } tutti_pipeline_cost;
/* Predicts the times of a pipeline. ends: the end of each action, rank after rank, or NULL. busy: [ranks] time at work.
   held: [ranks] the most activations (of a microbatch in a stage) that a rank has at a time. The bubble of a rank
   is 1 - busy / makespan. */
TUTTI_API tutti_status tutti_pipeline_time(const tutti_pipeline *pipeline, const tutti_pipeline_cost *cost,
    double *ends, double *makespan, double *busy, int *held);

/* ---- experts: the routing of rows in a mixture of experts. These functions send nothing: they access rows by
   address, and rows of other ranks in shared memory (tutti_mem_alloc_common) ---- */
/* Assigns a row to each choice. expert[tokens][choices] has the experts that each token chose, or -1. place has the
   same shape, and gets the position of each choice among this rank's rows for that expert, in token order. It is -1 for
   no expert, or once the expert has `capacity` rows. counts[experts] gets the rows placed. INVALID_ARGUMENT names a
   token with an invalid expert. */
TUTTI_API tutti_status tutti_experts_place(const int64_t *expert, size_t tokens, int choices, int experts,
    uint64_t capacity, int64_t *place, uint64_t *counts);
/* Computes where rows lie. counts[ranks][experts] has the number of rows of each rank for each expert. Ranks get
   equally many experts, in order. A rank keeps the rows of its experts in one array, ordered by expert, then by source
   rank. first[ranks][experts] gets the first row there that a source rank uses for an expert, and rows[ranks] the
   length of each rank's array. With padded 0 rows are contiguous; otherwise each source rank and expert gets `padded`
   rows, used or not. */
TUTTI_API tutti_status tutti_experts_offsets(const uint64_t *counts, int ranks, int experts, uint64_t padded,
    uint64_t *first, uint64_t *rows);
/* The caller starts with TUTTI_EXPERTS_ROWS_INIT. */
typedef struct tutti_experts_rows {
    size_t struct_size;                                 /* bytes */
    size_t tokens, columns;
    int choices;                                        /* 1 to 64 */
    /* The type is float32, bfloat16 or float16. */
    tutti_dtype dtype;
    /* The arrays have the shape [tokens][choices], as in tutti_experts_place. */
    const int64_t *expert, *place;
    /* first[experts] has the address of this rank's first row for each expert. */
    void *const *first;
} tutti_experts_rows;
#define TUTTI_EXPERTS_ROWS_INIT { sizeof(tutti_experts_rows), 0, 0, 1, TUTTI_FLOAT32, NULL, NULL, NULL }
/* Copies each token of from[tokens][columns] to the rows of its choices, times weight[tokens][choices] if not NULL. */
TUTTI_API tutti_status tutti_experts_scatter(const tutti_experts_rows *rows, const void *from, const float *weight);
/* Writes to to[tokens][columns] the sum of each token's rows, times their weights if not NULL, in the order of its
   choices. Sums are in float32 and rounded once. */
TUTTI_API tutti_status tutti_experts_gather(const tutti_experts_rows *rows, void *to, const float *weight);
/* Writes to out[tokens][choices] the dot product of each row and with[tokens][columns], or 0 where place is -1. */
TUTTI_API tutti_status tutti_experts_dot(const tutti_experts_rows *rows, const void *with, float *out);

#if defined(__cplusplus)
}
#endif
