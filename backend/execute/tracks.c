/* This file numbers operations from 1, so 0 means none. A rank checks only every TRACKS / 2 operations whether the next
   track is free. It then requires that all ranks have come half a ring farther than needed. So one read of each peer
   serves many operations, and a lagging peer can catch up undisturbed. */
#include "backend/execute/tracks.h"
#include "backend/execute/counters.h"
#include <assert.h>

static uint64_t executor_operation_number(const struct executor *x) { return x->operation + 1; }
void tracks_enter_operation(struct executor *x)
{
    x->run.track = x->tracks.at;
    x->run.parity = (int)(x->tracks.turn & 1);
}
void tracks_record_arrival(struct executor *x)
{
    x->tracks.last[x->run.track] = (struct track_use){ executor_operation_number(x), x->base };
}
/* An operation has the newest track, or the one before it in the ring; `other` is the remaining one of the two. */
int tracks_next(const struct executor *x)
{
    return x->run.one_sided ? (int)((x->tracks.newest + 1u) % TRACKS) : x->tracks.other;
}
void tracks_end_operation(struct executor *x)
{
    struct tracks *l = &x->tracks;
    if (!x->run.one_sided) {
        l->at = l->other;
        l->other = x->run.track;
        l->joined = executor_operation_number(x);
        l->turn++;
        return;
    }
    l->other = l->newest;
    l->at = l->newest = tracks_next(x);
    l->one_sided_hash = (l->one_sided_hash ^ x->run.fingerprint) * 0x9e3779b97f4a7c15u;
    l->one_sided_hash ^= l->one_sided_hash >> 32;
}

/* ---- is the next one free? ---- */
bool track_is_reached_by_peer(const struct executor *x, int peer, int track)
{
    const struct line *line = segment_line(x->site.segment, peer, track);
    return peer == x->site.index || atomic_load(&line->counter) > x->tracks.last[track].base;
}
/* Returns the track of the operation in which all ranks must have arrived; -1: all are known to have. */
static int tracks_find_awaited(const struct executor *x)
{
    uint64_t used = x->tracks.last[tracks_next(x)].number;
    int track = 0;
    if (!used || x->tracks.joined > used) return -1;
    /* The search succeeds, because every later operation has had a track of its own. */
    while (x->tracks.last[track].number != used + TRACKS / 2) {
        track++;
        assert(track < TRACKS);
    }
    return track;
}
bool tracks_next_is_free(struct executor *x, tutti_status *status)
{
    int track = tracks_find_awaited(x);
    if (track < 0) return true;
    uint64_t arrived = x->tracks.last[track].base + 1, wanted = x->tracks.last[track].number;
    uint64_t mine = executor_declaration(x, x->site.index, wanted - 1)->fingerprint;
    for (int peer = 0; peer < x->site.ranks; peer++) {
        if (peer == x->site.index) continue;
        if (x->seen[peer][SEEN_COUNTER] < arrived && !track_poll_peer(x, peer, track, arrived, executor_poll_limit(x)))
            return false;
        if (executor_declaration(x, peer, wanted - 1)->fingerprint == mine) continue;
        *status = TUTTI_MISMATCH;
        return false;
    }
    x->tracks.joined = wanted;
    return true;
}
bool tracks_next_may_be_free(const struct executor *x)
{
    int track = tracks_find_awaited(x);
    for (int peer = 0; track >= 0 && peer < x->site.ranks; peer++)
        if (!track_is_reached_by_peer(x, peer, track)) return false;
    return true;
}
