/* Grids of ranks with named axes; tutti_groups.h documents the calls. Every grid that is passed in comes from grid_make
   or grid_make_experts. */
#pragma once
#include "include/tutti_groups.h"

/* Parses the axes (order, as in "tp-dp-pp") and their sizes (as in "tp=2,dp=4") to a grid. */
tutti_status grid_make(tutti_grid *out, const char *order, const char *sizes, int ranks);
/* Makes the grid of experts over the ranks of the dense grid. */
tutti_status grid_make_experts(tutti_grid *out, const tutti_grid *dense, int tp, int ep);
/* Writes the index of a rank on each axis to out[axes]. */
tutti_status grid_get_indices(const tutti_grid *grid, int rank, int *out);
/* Ranks that differ only in the named axes form a group. Returns the number of groups and their size, the ranks of a
   group (out[size]), or the group of a rank and its position (place) there. */
tutti_status grid_count_groups(const tutti_grid *grid, const char *names, int *groups, int *size);
tutti_status grid_list_group(const tutti_grid *grid, const char *names, int group, int *out);
tutti_status grid_find_group(const tutti_grid *grid, const char *names, int rank, int *group, int *place);
/* Sets *group to the first group with ranks on several hosts, or to -1. host[ranks] has the host of each rank; *most
   gets the largest number of hosts of one group. */
tutti_status grid_find_straddling_group(const tutti_grid *grid, const char *names, const int *host, int *group,
    int *most);
