/* Grids: the calls, and their checks of pointers. */
#include "backend/base/status.h"
#include "backend/groups/grid.h"

static tutti_status check(const void *grid, const void *names, const void *out)
{
    if (grid && names && out) return TUTTI_OK;
    return status_refuse(TUTTI_INVALID_ARGUMENT,
        "grid: a grid, names and a place for the result are needed; one is NULL");
}
tutti_status tutti_grid_make(tutti_grid *out, const char *order, const char *sizes, int ranks)
{
    TRY(check(out, order, sizes));
    return grid_make(out, order, sizes, ranks);
}
tutti_status tutti_grid_experts(tutti_grid *out, const tutti_grid *dense, int tp, int ep)
{
    TRY(check(dense, dense, out));
    return grid_experts(out, dense, tp, ep);
}
tutti_status tutti_grid_index(const tutti_grid *grid, int rank, int *out)
{
    TRY(check(grid, grid, out));
    return grid_index(grid, rank, out);
}
tutti_status tutti_grid_groups(const tutti_grid *grid, const char *names, int *groups, int *size)
{
    TRY(check(grid, names, groups));
    TRY(check(grid, names, size));
    return grid_groups(grid, names, groups, size);
}
tutti_status tutti_grid_group(const tutti_grid *grid, const char *names, int group, int *out)
{
    TRY(check(grid, names, out));
    return grid_group(grid, names, group, out);
}
tutti_status tutti_grid_find(const tutti_grid *grid, const char *names, int rank, int *group, int *place)
{
    TRY(check(grid, names, group));
    TRY(check(grid, names, place));
    return grid_find(grid, names, rank, group, place);
}
tutti_status tutti_grid_straddles(const tutti_grid *grid, const char *names, const int *host, int *group, int *most)
{
    TRY(check(grid, names, host));
    TRY(check(grid, group, most));
    return grid_straddles(grid, names, host, group, most);
}
