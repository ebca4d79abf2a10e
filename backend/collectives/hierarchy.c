/* Slices, carriers and leaders. They depend only on the layout, so every rank can compute those of every host. */
#include "backend/collectives/hierarchy.h"

/* ---- slices ---- */
struct slices slices_cut(struct schedule *schedule, int pieces)
{
    struct slices all = { team_of_host(schedule), schedule->layout->largest, pieces };
    schedule_cut(schedule, all.count * pieces);
    return all;
}
struct span slice_span_of_rank(const struct slices *all, int rank, enum buffer buffer, int k)
{
    return (struct span){ rank, buffer, k * all->pieces, all->pieces };
}
struct team slice_owner_team(const struct schedule *schedule, const struct slices *all, int k)
{
    struct team across = team_across_hosts(schedule, k);
    across.base = k * all->pieces;
    across.pieces = all->pieces;
    across.source = all->host.size == 1 ? INPUT : OUTPUT;
    return across;
}
void slices_read_from_peers(struct schedule *schedule, const struct slices *all)
{
    for (int k = 0; k < all->count; k++)
        if (k % all->host.size != all->host.me)
            step_copy(schedule, slice_span_of_rank(all, schedule->rank, OUTPUT, k),
                slice_span_of_rank(all, team_rank(&all->host, k), OUTPUT, k));
}
void step_sum_host_inputs(struct schedule *schedule, struct span into, int first)
{
    struct team host = team_of_host(schedule);
    step_copy(schedule, into, (struct span){ team_rank(&host, 0), INPUT, first, into.count });
    for (int i = 1; i < host.size; i++)
        step_reduce(schedule, into, (struct span){ team_rank(&host, i), INPUT, first, into.count });
}

/* ---- carriers and leaders ---- */
int layout_carrier_of_rank(const struct layout *layout, int host, int rank)
{
    struct place at = layout_place(layout, rank);
    return layout_rank(layout, host, (layout->first[at.host] + at.index) % layout_host_size(layout, host));
}
struct team team_of_leaders(const struct schedule *schedule)
{
    struct team leaders = team_across_hosts(schedule, layout_place(schedule->layout, schedule->root).index);
    leaders.pieces = schedule->cut;
    leaders.source = layout_host_size(schedule->layout, schedule->place.host) == 1 ? INPUT : OUTPUT;
    return leaders;
}
/* The team of leaders has one member for each host, and leaders->me is the member on this rank's host, which may be
   another rank. */
bool schedule_rank_is_leader(const struct schedule *schedule, const struct team *leaders)
{
    return team_rank(leaders, leaders->me) == schedule->rank;
}
void blocks_recv_from_host(struct schedule *schedule, enum buffer buffer, int host, int peer)
{
    const struct layout *layout = schedule->layout;
    step_recv(schedule, span_of_chunk(schedule->rank, buffer, layout_rank(layout, host, 0)), peer);
    for (int i = 1; i < layout_host_size(layout, host); i++)
        step_add_span(schedule, span_of_chunk(schedule->rank, buffer, layout_rank(layout, host, i)));
}
