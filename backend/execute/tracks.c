/* This file numbers operations from 1, so 0 means none. A rank checks only every TRACKS / 2 operations whether the next
   track is free. It then requires that all ranks have come half a ring farther than needed. So one read of each peer
   serves many operations, and a lagging peer can catch up undisturbed. */
#include "backend/execute/tracks.h"
#include "backend/execute/counters.h"
#include <assert.h>

/* Returns the number of the running operation, from 1. */
static uint64_t executor_operation_number(const struct executor *executor) { return executor->operation + 1; }
void tracks_enter_operation(struct executor *executor)
{
    executor->run.track = executor->tracks.next;
    executor->run.parity = (int)(executor->tracks.turn & 1);
}
void tracks_record_arrival(struct executor *executor)
{
    executor->tracks.last[executor->run.track] =
        (struct track_use){ executor_operation_number(executor), executor->base };
}
/* An operation has the newest track, or the one before it in the ring; `other` is the remaining one of the two. */
int tracks_next(const struct executor *executor)
{
    return executor->run.one_sided ? (int)((executor->tracks.newest + 1u) % TRACKS) : executor->tracks.other;
}
void tracks_end_operation(struct executor *executor)
{
    struct tracks *tracks = &executor->tracks;
    if (!executor->run.one_sided) {
        tracks->next = tracks->other;
        tracks->other = executor->run.track;
        tracks->joined = executor_operation_number(executor);
        tracks->turn++;
        return;
    }
    /* The next operation, of any kind, gets the next track of the ring, and `other` is the one before it. */
    tracks->other = tracks->newest;
    tracks->next = tracks->newest = tracks_next(executor);
    tracks->one_sided_hash = (tracks->one_sided_hash ^ executor->run.fingerprint) * 0x9e3779b97f4a7c15u;
    tracks->one_sided_hash ^= tracks->one_sided_hash >> 32;
}

/* ---- is the next one free? ---- */
bool track_is_reached_by_peer(const struct executor *executor, int peer, int track)
{
    const struct line *line = segment_line(executor->site.segment, peer, track);
    return peer == executor->site.index || atomic_load(&line->counter) > executor->tracks.last[track].base;
}
/* Returns the track of the operation in which all ranks must have arrived, so that the next track is free; -1: it is
   known to be free. */
static int tracks_find_awaited(const struct executor *executor)
{
    uint64_t used = executor->tracks.last[tracks_next(executor)].number;
    int track = 0;
    if (!used || executor->tracks.joined > used) return -1;
    /* The search succeeds, because every later operation has had a track of its own. */
    while (executor->tracks.last[track].number != used + TRACKS / 2) {
        track++;
        assert(track < TRACKS);
    }
    return track;
}
bool tracks_next_is_free(struct executor *executor, tutti_status *status)
{
    int track = tracks_find_awaited(executor);
    if (track < 0) return true;
    uint64_t arrived = executor->tracks.last[track].base + 1, wanted = executor->tracks.last[track].number;
    uint64_t own = executor_declaration(executor, executor->site.index, wanted - 1)->fingerprint;
    for (int peer = 0; peer < executor->site.ranks; peer++) {
        if (peer == executor->site.index) continue;
        if (executor->seen[peer][LINE_COUNTER] < arrived
            && !track_poll_peer(executor, peer, track, arrived, executor_poll_limit(executor)))
            return false;
        if (executor_declaration(executor, peer, wanted - 1)->fingerprint == own) continue;
        *status = TUTTI_MISMATCH;
        return false;
    }
    executor->tracks.joined = wanted;
    return true;
}
bool tracks_next_may_be_free(const struct executor *executor)
{
    int track = tracks_find_awaited(executor);
    for (int peer = 0; track >= 0 && peer < executor->site.ranks; peer++)
        if (!track_is_reached_by_peer(executor, peer, track)) return false;
    return true;
}
