/* Helpers of the hierarchical algorithms. Ranks of a host read each other's memory, and every rank of a host carries a
 * part of the bytes between hosts. So all networks and cores are busy, and a byte crosses only as often as it must.
 *
 * A message that can be cut is cut into *slices*, one for each rank of the largest host. On every host, index i owns
 * the slices that are i modulo the host's size. So each slice has one owner on each host, for any placement and sizes
 * of hosts. Whole blocks, which cannot be cut if counts are uneven, have *carriers* instead. H is the number of hosts;
 * n, p and b are as elsewhere. A single host only reads; hosts of one rank only send. */
#pragma once
#include "backend/collectives/common.h"

/* A message cut into `count` slices of `pieces` chunks each. host: the ranks of this host, which own the slices. */
struct slices { struct team host; int count, pieces; };
/* Cuts the message into one slice for each rank of the largest host. */
struct slices slices_cut(struct schedule *schedule, int pieces);
/* Returns slice k in a buffer of a rank. */
struct span slice_span_of_rank(const struct slices *all, int rank, enum buffer buffer, int k);
/* Returns the team of the owners of slice k, one on each host, with the slice as its message. Its source is the host's
   sum in OUTPUT, or INPUT on a host of one rank. */
struct team slice_owner_team(const struct schedule *schedule, const struct slices *all, int k);
/* Records copies of the slices that other ranks of this host own, from their OUTPUT to this rank's. */
void slices_read_from_peers(struct schedule *schedule, const struct slices *all);

/* Records into = the sum of INPUT from chunk `first` on over the ranks of this host, read where it lies and added in
   their order. */
void step_sum_host_inputs(struct schedule *schedule, struct span into, int first);

/* Returns the rank on `host` that acts for a rank of another host. The ranks of `host` take turns, so that its work is
   spread evenly. */
int layout_carrier_of_rank(const struct layout *layout, int host, int rank);
/* Returns the team of one rank of each host, with the root as the leader of its host. Its message is the whole one. */
struct team team_of_leaders(const struct schedule *schedule);
/* True if the schedule's rank is the leader of its host. leaders: from team_of_leaders. */
bool schedule_rank_is_leader(const struct schedule *schedule, const struct team *leaders);
/* Records that the blocks of all ranks of `host` are received from `peer`, as one message, into their places in a
   buffer of this rank. */
void blocks_recv_from_host(struct schedule *schedule, enum buffer buffer, int host, int peer);
