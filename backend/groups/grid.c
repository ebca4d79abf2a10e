/* Parses texts to sizes and computes with strides. The *chosen* axes number the ranks within a group, and the other
   axes number the groups. */
#include "backend/groups/grid.h"
#include "backend/base/status.h"
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NAME = TUTTI_GRID_NAME - 1 };
/* Some axes of a grid, in its order; `size` is the product of their sizes. */
struct grid_part { int axis[TUTTI_GRID_AXES], count, size; };

/* ---- texts ---- */
/* Returns the number of letters and digits at the beginning of a text. */
static size_t axis_name_length(const char *text)
{
    size_t n = 0;
    while (isalnum((unsigned char)text[n])) n++;
    return n;
}
/* Returns the axis of that name, or -1. */
static int grid_find_axis(const tutti_grid *grid, const char *name, size_t length)
{
    for (int a = 0; a < grid->axes; a++)
        if (strlen(grid->name[a]) == length && memcmp(grid->name[a], name, length) == 0) return a;
    return -1;
}
/* Adds an axis of size 1 behind the others. */
static tutti_status grid_add_axis(tutti_grid *grid, const char *name, size_t length)
{
    if (grid->axes == TUTTI_GRID_AXES)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "grid: more than %d names", TUTTI_GRID_AXES);
    grid->size[grid->axes] = 1;
    memcpy(grid->name[grid->axes++], name, length);
    return TUTTI_OK;
}
/* Takes the next name from a list such as "tp-dp": *name and *length get the name at *text, and *text goes on to the
   next one. `all`: the whole list, for errors. */
static tutti_status axis_names_take_next(const char **text, const char *all, const char **name, size_t *length)
{
    *name = *text;
    *length = axis_name_length(*text);
    const char *end = *text + *length;
    if (*length == 0 || *length > MOST_NAME || (*end && *end != '-') || (*end && !end[1]))
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "grid: \"%s\" is not a list of names of 1 to %d letters and digits, separated by -, as in "
            "\"tp-cp-ep-dp-pp\"",
            all, MOST_NAME);
    *text = end + (*end == '-');
    return TUTTI_OK;
}
/* Adds the axes of an order such as "tp-ep-dp-pp" to the grid, innermost first, with size 1. */
static tutti_status grid_parse_order(tutti_grid *grid, const char *order)
{
    const char *text = order, *name;
    size_t length;
    do {
        TRY(axis_names_take_next(&text, order, &name, &length));
        if (grid_find_axis(grid, name, length) >= 0)
            return status_refuse(TUTTI_INVALID_ARGUMENT, "grid: the order \"%s\" names %.*s twice", order, (int)length,
                name);
        TRY(grid_add_axis(grid, name, length));
    } while (*text);
    return TUTTI_OK;
}
/* Sets the size of an axis from "name=size" at *text, and moves *text to the next one. *given has a bit for each axis
   that has a size already. `order` and `sizes`: the whole texts, for errors. */
static tutti_status grid_parse_size(tutti_grid *grid, const char *order, const char *sizes, const char **text,
    uint32_t *given)
{
    size_t length = axis_name_length(*text);
    const char *name = *text, *digits = name + length + 1;
    char *end = NULL;
    long size = length && length <= MOST_NAME && name[length] == '=' ? strtol(digits, &end, 10) : 0;
    if (!end || end == digits || (*end && (*end != ',' || !end[1])) || !isdigit((unsigned char)*digits))
        return status_refuse(TUTTI_INVALID_ARGUMENT, "grid: \"%s\" is not a list of sizes, as in \"tp=2,dp=4\"", sizes);
    if (size < 1 || size > INT_MAX)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "grid: the size of %.*s is %ld; it must be at least 1",
            (int)length, name, size);
    int axis = grid_find_axis(grid, name, length);
    if (axis < 0 && size > 1)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "grid: %.*s has size %ld, but the order \"%s\" does not name it",
            (int)length, name, size, order);
    if (axis < 0) TRY(grid_add_axis(grid, name, length));
    if (axis < 0) axis = grid->axes - 1;
    if (*given >> axis & 1)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "grid: %.*s has two sizes in \"%s\"", (int)length, name, sizes);
    *given |= 1u << axis;
    grid->size[axis] = (int)size;
    *text = end + (*end == ',');
    return TUTTI_OK;
}
/* INVALID_ARGUMENT if the product of the sizes is not the number of ranks. */
static tutti_status grid_check_product(const tutti_grid *grid)
{
    char text[STATUS_DETAIL_BYTES / 2] = "";
    long product = 1;
    size_t used = 0;
    for (int a = 0; a < grid->axes; a++) {
        product = product > grid->ranks ? product : product * grid->size[a];
        int more = snprintf(text + used, sizeof text - used, "%s%s %d", a ? " x " : "", grid->name[a], grid->size[a]);
        used += more > 0 && (size_t)more < sizeof text - used ? (size_t)more : 0;
    }
    if (product == grid->ranks) return TUTTI_OK;
    return status_refuse(TUTTI_INVALID_ARGUMENT, "grid: %s are %s%ld ranks, but there are %d", text,
        product > grid->ranks ? "more than " : "", product > grid->ranks ? (long)grid->ranks : product, grid->ranks);
}
tutti_status grid_make(tutti_grid *out, const char *order, const char *sizes, int ranks)
{
    tutti_grid grid = { .ranks = ranks };
    uint32_t given = 0;
    if (ranks < 1) return status_refuse(TUTTI_INVALID_ARGUMENT, "grid: %d ranks; there must be at least one", ranks);
    TRY(grid_parse_order(&grid, order));
    for (const char *text = sizes; *text;) TRY(grid_parse_size(&grid, order, sizes, &text, &given));
    TRY(grid_check_product(&grid));
    *out = grid;
    return TUTTI_OK;
}

/* ---- parts ---- */
/* Finds the axes in a list of names; they number the ranks within a group. */
static tutti_status grid_choose_part(const tutti_grid *grid, const char *names, struct grid_part *chosen)
{
    const char *text = names, *name;
    size_t length;
    bool is_chosen[TUTTI_GRID_AXES] = { false };
    do {
        TRY(axis_names_take_next(&text, names, &name, &length));
        int axis = grid_find_axis(grid, name, length);
        if (axis < 0)
            return status_refuse(TUTTI_INVALID_ARGUMENT, "grid: \"%s\" names %.*s, which is not an axis of the grid",
                names, (int)length, name);
        is_chosen[axis] = true;
    } while (*text);
    *chosen = (struct grid_part){ .size = 1 };
    /* The part has the order of the grid, not that of the names. */
    for (int a = 0; a < grid->axes; a++) {
        if (!is_chosen[a]) continue;
        chosen->axis[chosen->count++] = a;
        chosen->size *= grid->size[a];
    }
    return TUTTI_OK;
}
/* Returns the axes that are not chosen; they number the groups. */
static struct grid_part grid_other_axes(const tutti_grid *grid, const struct grid_part *chosen)
{
    struct grid_part others = { .size = grid->ranks / chosen->size };
    for (int a = 0, c = 0; a < grid->axes; a++) {
        if (c < chosen->count && chosen->axis[c] == a) c++;
        else others.axis[others.count++] = a;
    }
    return others;
}
/* Returns the distance of two ranks that are neighbours on the axis. */
static int grid_axis_stride(const tutti_grid *grid, int axis)
{
    int stride = 1;
    for (int a = 0; a < axis; a++) stride *= grid->size[a];
    return stride;
}
/* Returns the rank whose number along the axes of a part is `number`, and whose index is 0 on all other axes. */
static int grid_part_rank(const tutti_grid *grid, const struct grid_part *part, int number)
{
    int rank = 0;
    for (int i = 0; i < part->count; i++) {
        rank += number % grid->size[part->axis[i]] * grid_axis_stride(grid, part->axis[i]);
        number /= grid->size[part->axis[i]];
    }
    return rank;
}
/* Returns a rank's number along the axes of a part: its indices there as a mixed-radix number, first axis fastest. */
static int grid_part_number(const tutti_grid *grid, const struct grid_part *part, int rank)
{
    int number = 0, stride = 1;
    for (int i = 0; i < part->count; i++) {
        number += rank / grid_axis_stride(grid, part->axis[i]) % grid->size[part->axis[i]] * stride;
        stride *= grid->size[part->axis[i]];
    }
    return number;
}
/* INVALID_ARGUMENT if the grid does not have the rank. */
static tutti_status grid_check_rank(const tutti_grid *grid, int rank)
{
    if (rank >= 0 && rank < grid->ranks) return TUTTI_OK;
    return status_refuse(TUTTI_INVALID_ARGUMENT, "grid: rank %d does not exist; there are %d ranks", rank, grid->ranks);
}
tutti_status grid_get_indices(const tutti_grid *grid, int rank, int *out)
{
    TRY(grid_check_rank(grid, rank));
    for (int a = 0; a < grid->axes; a++) out[a] = rank / grid_axis_stride(grid, a) % grid->size[a];
    return TUTTI_OK;
}
tutti_status grid_count_groups(const tutti_grid *grid, const char *names, int *groups, int *size)
{
    struct grid_part chosen;
    TRY(grid_choose_part(grid, names, &chosen));
    *groups = grid->ranks / chosen.size;
    *size = chosen.size;
    return TUTTI_OK;
}
tutti_status grid_list_group(const tutti_grid *grid, const char *names, int group, int *out)
{
    struct grid_part chosen, others;
    TRY(grid_choose_part(grid, names, &chosen));
    others = grid_other_axes(grid, &chosen);
    if (group < 0 || group >= others.size)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "grid: group %d of \"%s\" does not exist; there are %d", group,
            names, others.size);
    int first = grid_part_rank(grid, &others, group);
    for (int i = 0; i < chosen.size; i++) out[i] = first + grid_part_rank(grid, &chosen, i);
    return TUTTI_OK;
}
tutti_status grid_find_group(const tutti_grid *grid, const char *names, int rank, int *group, int *place)
{
    struct grid_part chosen, others;
    TRY(grid_check_rank(grid, rank));
    TRY(grid_choose_part(grid, names, &chosen));
    others = grid_other_axes(grid, &chosen);
    *group = grid_part_number(grid, &others, rank);
    *place = grid_part_number(grid, &chosen, rank);
    return TUTTI_OK;
}
tutti_status grid_find_straddling_group(const tutti_grid *grid, const char *names, const int *host, int *group,
    int *most_hosts)
{
    struct grid_part chosen, others;
    TRY(grid_choose_part(grid, names, &chosen));
    others = grid_other_axes(grid, &chosen);
    *group = -1;
    *most_hosts = 0;
    for (int number = 0; number < others.size; number++) {
        int first = grid_part_rank(grid, &others, number), hosts = 0;
        for (int i = 0; i < chosen.size; i++) {
            int k = 0, own_host = host[first + grid_part_rank(grid, &chosen, i)];
            while (k < i && host[first + grid_part_rank(grid, &chosen, k)] != own_host) k++;
            hosts += k == i;
        }
        if (hosts > 1 && *group < 0) *group = number;
        if (hosts > *most_hosts) *most_hosts = hosts;
    }
    return TUTTI_OK;
}

/* ---- experts ---- */
static bool grid_axis_has_name(const tutti_grid *grid, int axis, const char *name)
{
    return strcmp(grid->name[axis], name) == 0;
}
/* INVALID_ARGUMENT if a rank is in another pipeline group of the experts' grid than of the dense grid. */
static tutti_status grid_compare_pipelines(const tutti_grid *dense, const tutti_grid *experts)
{
    int axis = grid_find_axis(dense, "pp", 2);
    for (int rank = 0; axis >= 0 && rank < dense->ranks; rank++) {
        int places[2][2];
        TRY(grid_find_group(dense, "pp", rank, &places[0][0], &places[0][1]));
        TRY(grid_find_group(experts, "pp", rank, &places[1][0], &places[1][1]));
        if (memcmp(places[0], places[1], sizeof places[0]) == 0) continue;
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "grid: the pipeline groups of the experts differ from the dense ones: rank %d is in group %d and in "
            "group %d. The sizes of the names before pp must have the same product in both grids",
            rank, places[0][0], places[1][0]);
    }
    return TUTTI_OK;
}
tutti_status grid_make_experts(tutti_grid *out, const tutti_grid *dense, int tp, int ep)
{
    tutti_grid grid = *dense;
    long remaining = dense->ranks;
    for (int a = 0; a < grid.axes; a++) {
        bool tensor = grid_axis_has_name(&grid, a, "tp"), experts = grid_axis_has_name(&grid, a, "ep");
        if (!grid_axis_has_name(&grid, a, "pp")) grid.size[a] = tensor ? tp : experts ? ep : 1;
    }
    int dp_axis = grid_find_axis(&grid, "dp", 2),
        names[2] = { grid_find_axis(&grid, "ep", 2), grid_find_axis(&grid, "tp", 2) };
    if (tp < 1 || ep < 1)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "grid: tp %d and ep %d of experts; both must be at least 1", tp,
            ep);
    if (dp_axis < 0 || (ep > 1 && names[0] < 0) || (tp > 1 && names[1] < 0))
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "grid: experts need an order that names dp, and ep and tp where they have more than one rank");
    for (int a = 0; a < grid.axes; a++) {
        if (remaining % grid.size[a]) remaining = 0;
        if (remaining) remaining /= grid.size[a];
    }
    if (!remaining)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "grid: experts of tp %d and ep %d do not divide %d ranks with the pipelines of the grid", tp, ep,
            dense->ranks);
    grid.size[dp_axis] = (int)remaining;
    TRY(grid_compare_pipelines(dense, &grid));
    *out = grid;
    return TUTTI_OK;
}
