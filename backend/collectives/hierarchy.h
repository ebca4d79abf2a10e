/* What hierarchical algorithms share. Ranks of a host read each other's memory, and every rank of a host carries a part
 * of what goes between hosts; so all networks and cores are busy, and a byte crosses no more often than it must.
 *
 * What can be cut is cut in *slices*, as many as the largest host has ranks; the ranks of every host take turns to own
 * one: index i those that are i modulo the host's size. So each slice has one owner on each host, whatever the sizes of
 * hosts and the placement. Whole blocks, which cannot be cut where counts are uneven, have *carriers* instead. n, p and
 * b as elsewhere; H is the number of hosts. On one host nothing is sent; with one rank per host nothing is read. */
#pragma once
#include "backend/collectives/common.h"

struct slices { struct team host; int count, pieces; };                /* slice k is chunks k * pieces … */
struct slices slices_cut(struct schedule *s, int pieces);              /* cuts the message */
struct span slice_of(const struct slices *all, int rank, enum buffer buffer, int k);
/* Who owns slice k on every host. What my host brings is in OUTPUT, or in INPUT if I am its only rank. */
struct team slice_team(const struct schedule *s, const struct slices *all, int k);
void slices_collect(struct schedule *s, const struct slices *all);     /* takes what peers own from their OUTPUT */

/* into = what the ranks of my host have at `first` of INPUT, read where it lies and added in their order. */
void sum_host(struct schedule *s, struct span into, int first);

/* Who on that host acts for a rank of another: in turns, so that the work of a host is spread evenly. */
int carrier_of(const struct layout *l, int host, int rank);
/* One rank of each host; on the root's host the root. Of everything, uncut. */
struct team team_leaders(const struct schedule *s);
bool team_leads(const struct schedule *s, const struct team *leaders);         /* is this rank one of them? */
/* The blocks of all ranks of a host, at their places in one of a rank's buffers, as one message. */
void blocks_recv(struct schedule *s, enum buffer buffer, int host, int peer);
