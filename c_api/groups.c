/* The public functions of grids and pipelines, with their checks of pointers. */
#include "backend/base/status.h"
#include "backend/groups/grid.h"
#include "backend/groups/pipeline.h"

/* Refuses NULL. */
static tutti_status grid_check_pointers(const void *grid, const void *names, const void *out)
{
    if (grid && names && out) return TUTTI_OK;
    return status_refuse(TUTTI_INVALID_ARGUMENT,
        "grid: the pointer to the grid, to the names or to the result is NULL");
}
tutti_status tutti_grid_make(tutti_grid *out, const char *order, const char *sizes, int ranks)
{
    TRY(grid_check_pointers(out, order, sizes));
    return grid_make(out, order, sizes, ranks);
}
tutti_status tutti_grid_experts(tutti_grid *out, const tutti_grid *dense, int tp, int ep)
{
    TRY(grid_check_pointers(dense, dense, out));
    return grid_make_experts(out, dense, tp, ep);
}
tutti_status tutti_grid_index(const tutti_grid *grid, int rank, int *out)
{
    TRY(grid_check_pointers(grid, grid, out));
    return grid_get_indices(grid, rank, out);
}
tutti_status tutti_grid_groups(const tutti_grid *grid, const char *names, int *groups, int *size)
{
    TRY(grid_check_pointers(grid, names, groups));
    TRY(grid_check_pointers(grid, names, size));
    return grid_count_groups(grid, names, groups, size);
}
tutti_status tutti_grid_group(const tutti_grid *grid, const char *names, int group, int *out)
{
    TRY(grid_check_pointers(grid, names, out));
    return grid_list_group(grid, names, group, out);
}
tutti_status tutti_grid_find(const tutti_grid *grid, const char *names, int rank, int *group, int *place)
{
    TRY(grid_check_pointers(grid, names, group));
    TRY(grid_check_pointers(grid, names, place));
    return grid_find_group(grid, names, rank, group, place);
}
tutti_status tutti_grid_straddles(const tutti_grid *grid, const char *names, const int *host, int *group, int *most)
{
    TRY(grid_check_pointers(grid, names, host));
    TRY(grid_check_pointers(grid, group, most));
    return grid_find_straddling_group(grid, names, host, group, most);
}

/* ---- pipelines ---- */
/* Refuses NULL. */
static tutti_status pipeline_check_pointers(const void *pipeline, const void *out)
{
    if (pipeline && out) return TUTTI_OK;
    return status_refuse(TUTTI_INVALID_ARGUMENT, "pipeline: the pointer to the pipeline or to a result is NULL");
}
const char *tutti_pipeline_name(int index) { return pipeline_schedule_name(index); }
tutti_status tutti_pipeline_make(tutti_pipeline **out, const char *schedule, int ranks, int chunks, int microbatches)
{
    TRY(pipeline_check_pointers(schedule, out));
    *out = NULL;
    return pipeline_make(out, schedule, ranks, chunks, microbatches);
}
tutti_status tutti_pipeline_destroy(tutti_pipeline *pipeline)
{
    pipeline_destroy(pipeline);
    return TUTTI_OK;
}
int tutti_pipeline_rank(const tutti_pipeline *pipeline, int stage)
{
    return pipeline && stage >= 0 && stage < pipeline->stages ? pipeline_stage_rank(pipeline, stage) : -1;
}
const tutti_action *tutti_pipeline_actions(const tutti_pipeline *pipeline, int rank, int *count)
{
    if (!pipeline || !count || rank < 0 || rank >= pipeline->ranks) return NULL;
    *count = pipeline->list[rank].count;
    return pipeline->list[rank].action;
}
tutti_status tutti_pipeline_check(const tutti_pipeline *pipeline)
{
    TRY(pipeline_check_pointers(pipeline, pipeline));
    return pipeline_check(pipeline);
}
tutti_status tutti_pipeline_time(const tutti_pipeline *pipeline, const tutti_pipeline_cost *cost, double *ends,
    double *makespan, double *busy, int *held)
{
    TRY(pipeline_check_pointers(pipeline, cost));
    TRY(pipeline_check_pointers(makespan, busy));
    TRY(pipeline_check_pointers(held, cost->forward && cost->input && cost->weight ? cost : NULL));
    return pipeline_compute_times(pipeline, cost, ends, makespan, busy, held);
}
