/* Helpers of the hierarchical algorithms. Ranks of a host read each other's memory, and every rank of a host carries a
 * part of the bytes between hosts. So all networks and cores are busy, and a byte crosses only as often as it must.
 *
 * A message that can be cut is cut into *slices*, one for each rank of the largest host. On every host, index i owns
 * the slices that are i modulo the host's size. So each slice has one owner on each host, for any placement and sizes
 * of hosts. Whole blocks, which cannot be cut if counts are uneven, have *carriers* instead. H is the number of hosts;
 * n, p and b are as elsewhere. A single host only reads; hosts of one rank only send. */
#pragma once
#include "backend/collectives/common.h"

/* Slice k begins at chunk k * pieces. */
struct slices { struct team host; int count, pieces; };
/* Cuts the message into slices of `pieces` chunks. */
struct slices slices_cut(struct schedule *schedule, int pieces);
struct span slice_span_of_rank(const struct slices *all, int rank, enum buffer buffer, int k);
/* Returns the owners of slice k on all hosts. The host's sum is in OUTPUT, or in INPUT on a host of one rank. */
struct team slice_owner_team(const struct schedule *schedule, const struct slices *all, int k);
/* Copies the slices that peers own from their OUTPUT. */
void slices_read_from_peers(struct schedule *schedule, const struct slices *all);

/* Records into = the sum of INPUT from chunk `first` on over the ranks of this host, read where it lies and added in
   their order. */
void step_sum_host_inputs(struct schedule *schedule, struct span into, int first);

/* Returns the rank on `host` that acts for a rank of another host. They take turns, so that a host's work is spread
   evenly. */
int layout_carrier_of_rank(const struct layout *layout, int host, int rank);
/* Returns one rank of each host, the root on its own host. The leaders work on the whole message. */
struct team team_of_leaders(const struct schedule *schedule);
/* True if this rank is a leader. */
bool team_has_rank_as_leader(const struct schedule *schedule, const struct team *leaders);
/* Receives the blocks of all ranks of a host, as one message, into their places in one of this rank's buffers. */
void blocks_recv_from_host(struct schedule *schedule, enum buffer buffer, int host, int peer);
