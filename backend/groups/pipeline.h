/* Pipelines: which rank works on which stage and microbatch, and in which order; tutti_groups.h documents the calls. A
 * pipeline has a list of actions for each rank, which the rank takes in order. An action waits for the actions of other
 * ranks that it needs, so the ranks need only agree on the lists. */
#pragma once
#include "include/tutti_groups.h"

/* The actions of a rank, in order. */
struct pipeline_list { tutti_action *action; int count; };
struct tutti_pipeline {
    /* chunks: the number of stages of each rank. */
    int ranks, chunks, stages, microbatches;
    /* True: the stages go up the ranks and down again. False: they start again at rank 0. */
    bool is_v_shaped;
    /* True: every backward is split into one of inputs and one of weights. */
    bool splits_backwards;
    struct pipeline_list *list;                         /* [ranks] */
};
/* Returns the rank that has a stage. */
static inline int pipeline_stage_rank(const struct tutti_pipeline *pipeline, int stage)
{
    int round = stage / pipeline->ranks, index = stage % pipeline->ranks;
    return pipeline->is_v_shaped && round % 2 ? pipeline->ranks - 1 - index : index;
}
/* Returns the index of a stage's microbatch in an array of stages * microbatches elements. */
static inline size_t pipeline_cell(const struct tutti_pipeline *pipeline, int stage, int microbatch)
{
    return (size_t)stage * (size_t)pipeline->microbatches + (size_t)microbatch;
}
/* Returns the kind of backward that other stages wait for. */
static inline tutti_work pipeline_backward_work(const struct tutti_pipeline *pipeline)
{
    return pipeline->splits_backwards ? TUTTI_BACKWARD_INPUT : TUTTI_BACKWARD;
}
/* Makes the pipeline of a named schedule. INVALID_ARGUMENT if the schedule excludes these numbers, NO_MEMORY. */
tutti_status pipeline_make(struct tutti_pipeline **out, const char *schedule, int ranks, int chunks, int microbatches);
/* Frees a pipeline; NULL is allowed. */
void pipeline_destroy(struct tutti_pipeline *pipeline);
/* Returns the name of a schedule, or NULL after the last. */
const char *pipeline_schedule_name(int index);
/* INVALID_ARGUMENT if an action is missing or a duplicate, if the lists deadlock, or if a rank uses messages in another
   order than their sender sends them. */
tutti_status pipeline_check(const struct tutti_pipeline *pipeline);
/* Simulates the pipeline with the costs of its stages. action_ends: [actions], rank after rank, the time at which each
   action ends, or NULL; makespan: the end of the last action; busy: [ranks], time at work; held: [ranks], the most
   activations that a rank has at a time. INVALID_ARGUMENT if a cost is negative or the lists deadlock; NO_MEMORY. */
tutti_status pipeline_compute_times(const struct tutti_pipeline *pipeline, const tutti_pipeline_cost *cost,
    double *action_ends, double *makespan, double *busy, int *held);
