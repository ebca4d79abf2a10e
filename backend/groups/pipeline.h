/* Pipelines: which rank works on which stage and microbatch, in which order; tutti.h tells what each call does. A
 * pipeline has for each rank a list of actions, which it takes one after the other; an action waits for those of other
 * ranks that it needs, so that no more is agreed than these lists. */
#pragma once
#include "include/tutti.h"

struct pipeline_list { tutti_action *action; int count; };
struct tutti_pipeline {
    int ranks, chunks, stages, microbatches;
    bool turns; /* stages go up the ranks and down again, else round and round */
    bool splits;                                        /* all backward passes, into inputs and weights */
    struct pipeline_list *list;                         /* [ranks] */
};
static inline int pipeline_rank(const struct tutti_pipeline *p, int stage)
{
    int round = stage / p->ranks, place = stage % p->ranks;
    return p->turns && round % 2 ? p->ranks - 1 - place : place;
}
/* Where what is known of a stage's microbatch lies, of stages * microbatches. */
static inline size_t pipeline_cell(const struct tutti_pipeline *p, int stage, int microbatch)
{
    return (size_t)stage * (size_t)p->microbatches + (size_t)microbatch;
}
static inline tutti_work pipeline_backward(const struct tutti_pipeline *p) /* that other stages wait for */
{
    return p->splits ? TUTTI_BACKWARD_INPUT : TUTTI_BACKWARD;
}
tutti_status pipeline_make(struct tutti_pipeline **out, const char *schedule, int ranks, int chunks, int microbatches);
void pipeline_destroy(struct tutti_pipeline *pipeline); /* NULL is fine */
const char *pipeline_name(int index);                   /* of a schedule; NULL: there are no more */
tutti_status pipeline_check(const struct tutti_pipeline *pipeline);
tutti_status pipeline_time(const struct tutti_pipeline *pipeline, const tutti_pipeline_cost *cost, double *ends,
    double *makespan, double *busy, int *held);
