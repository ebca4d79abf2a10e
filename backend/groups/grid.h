/* Grids of ranks with named axes; tutti.h documents the calls. Every grid that is passed in comes from grid_make or
   grid_make_experts. */
#pragma once
#include "include/tutti_groups.h"

tutti_status grid_make(tutti_grid *out, const char *order, const char *sizes, int ranks);
tutti_status grid_make_experts(tutti_grid *out, const tutti_grid *dense, int tp, int ep);
tutti_status grid_get_indices(const tutti_grid *grid, int rank, int *out);
tutti_status grid_count_groups(const tutti_grid *grid, const char *names, int *groups, int *size);
tutti_status grid_list_group(const tutti_grid *grid, const char *names, int group, int *out);
tutti_status grid_find_group(const tutti_grid *grid, const char *names, int rank, int *group, int *place);
tutti_status grid_find_straddling_group(const tutti_grid *grid, const char *names, const int *host, int *group,
    int *most);
