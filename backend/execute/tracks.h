/* Which line a rank writes in an operation, and when it may. Part of the executor.
 *
 * An operation is *one-sided* if a rank can do without some of its peers: a broadcast, scatter, gather or reduce of one
 * tile, small enough for the slots of a track, that does not look where tensors lie, and all of whose ranks are here.
 * Then everybody awaits only those whose data it needs, and who only sends is done when it has sent. In all others
 * everybody awaits all: arriving in one says that those before it are over. All ranks think alike about it, because it
 * follows from what the fingerprint says.
 *
 * Lines lie in tracks. The track of an operation is known before its kind is: after an operation that awaited all, the
 * next one takes the track of the one before (so a row of them takes two tracks in turns); after a one-sided one, the
 * next in the ring. A rank goes on from the roll call of an operation only when all have left behind the last operation
 * of the track that comes next. So whoever begins an operation may write its line and its slot at once, and:
 *
 *   1. While a rank is in an operation, nobody writes over what this operation has put into lines, slots of tracks and
 *      declarations: a peer is at most TRACKS - 1 operations ahead.
 *   2. Ranks that have come to the same operation think alike about its track, its positions, and its turn (of counts
 *      and large slots), even if they have disagreed before: who disagrees about the kind of an operation does not get
 *      beyond it, if it awaits all; and one-sided ones all take as many positions.
 *   3. A fingerprint says all one-sided operations before it (the trail). So who looks at a peer's finds what they have
 *      disagreed about before; and who goes on has looked at all of them TRACKS operations ago or later. Declarations
 *      last for twice as many, so the first one that differs can still be read. */
#pragma once
#include "backend/execute/execute.h"

enum { TRACK_POSITIONS = 1024 };                         /* that a one-sided operation takes, whatever it is */

void tracks_enter(struct executor *x);                   /* sets track and turn of the operation that begins */
void tracks_record(struct executor *x);                    /* it is announced now */
int tracks_next(const struct executor *x);               /* the track of the next operation */
/* In a one-sided one: whether all have left behind what the next track was used for. *status is MISMATCH when one of
   them has done something else. */
bool tracks_are_free(struct executor *x, tutti_status *status);
bool tracks_may_be_free(const struct executor *x);       /* the same by a look that notes nothing */
/* Has the peer arrived in the last operation of the track? */
bool track_is_reached(const struct executor *x, int peer, int track);
void tracks_leave(struct executor *x);                   /* the operation is over */
