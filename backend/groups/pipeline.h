/* Pipelines: which rank works on which stage and microbatch, and in which order; tutti.h documents the calls. A
 * pipeline has a list of actions for each rank, which the rank takes in order. An action waits for the actions of
 * other ranks that it needs, so the ranks need only agree on the lists. */
#pragma once
#include "include/tutti_groups.h"

struct pipeline_list { tutti_action *action; int count; };
struct tutti_pipeline {
    int ranks, chunks, stages, microbatches;
    /* With `v_shaped` the stages go up the ranks and down again, otherwise they start again at rank 0. */
    bool v_shaped;
    /* With `splits` every backward pass is split into inputs and weights. */
    bool splits;
    struct pipeline_list *list;                         /* [ranks] */
};
static inline int pipeline_stage_rank(const struct tutti_pipeline *pipeline, int stage)
{
    int round = stage / pipeline->ranks, place = stage % pipeline->ranks;
    return pipeline->v_shaped && round % 2 ? pipeline->ranks - 1 - place : place;
}
/* Returns the index of a stage's microbatch in an array of stages * microbatches elements. */
static inline size_t pipeline_cell(const struct tutti_pipeline *pipeline, int stage, int microbatch)
{
    return (size_t)stage * (size_t)pipeline->microbatches + (size_t)microbatch;
}
/* Returns the kind of backward that other stages wait for. */
static inline tutti_work pipeline_backward_work(const struct tutti_pipeline *pipeline)
{
    return pipeline->splits ? TUTTI_BACKWARD_INPUT : TUTTI_BACKWARD;
}
tutti_status pipeline_make(struct tutti_pipeline **out, const char *schedule, int ranks, int chunks, int microbatches);
/* Frees a pipeline; NULL is allowed. */
void pipeline_destroy(struct tutti_pipeline *pipeline);
/* Returns the name of a schedule, or NULL after the last. */
const char *pipeline_schedule_name(int index);
tutti_status pipeline_check(const struct tutti_pipeline *pipeline);
tutti_status pipeline_compute_times(const struct tutti_pipeline *pipeline, const tutti_pipeline_cost *cost,
    double *ends, double *makespan, double *busy, int *held);
