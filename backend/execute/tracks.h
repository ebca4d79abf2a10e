/* Which line a rank writes in an operation, and when it may. Part of the executor.
 *
 * An operation is *one-sided* if a rank needs only some of its peers. Broadcasts, scatters, gathers and reduces of one
 * tile are one-sided if all ranks are on one host, the tile fits into the slots of a track, and the plan was chosen
 * before the roll call. In such an operation a rank awaits only the ranks whose data it needs, and a rank that only
 * sends is done when it has sent. In all other operations every rank awaits all, so an arrival in one means that the
 * earlier ones are over. All ranks decide this equally, because it follows from the content of the fingerprint.
 *
 * Lines lie in tracks. The track of an operation is known before its kind is. After an operation that awaited all, the
 * next one takes the track of the one before, so a series of them alternates between two tracks. After a one-sided one,
 * the next operation takes the next track in the ring. A rank passes the roll call of an operation only when all ranks
 * have left the last operation of the next track. So a rank that begins an operation may write its line and its slot at
 * once, and:
 *
 *   1. While a rank is in an operation, its peers do not overwrite the operation's lines, slots of tracks and
 *      declarations, because a peer is at most TRACKS - 1 operations ahead.
 *   2. Ranks that have come to the same operation agree on its track, its positions, and its turn (of counts and large
 *      slots), even if they have disagreed before. A rank that disagrees on the kind of an operation that awaits all
 *      stays in it, and all one-sided operations take equally many positions.
 *   3. A fingerprint covers all earlier one-sided operations (one_sided_hash). So a rank that reads a peer's
 *      fingerprint finds an earlier disagreement. A rank that continues has read all fingerprints at most TRACKS
 *      operations ago. Declarations last twice as long, so the first one that differs is still readable. */
#pragma once
#include "backend/execute/execute.h"

/* Every one-sided operation takes this many positions. */
enum { TRACK_POSITIONS = 1024 };

/* Sets the track and the turn of the operation that begins. */
void tracks_enter_operation(struct executor *executor);
/* Records the number and the base of the operation in its track. */
void tracks_record_arrival(struct executor *executor);
/* Returns the track of the next operation. */
int tracks_next(const struct executor *executor);
/* In a one-sided operation: true if all ranks have left the last operation of the next track. *status is MISMATCH if
   one of them has called something else. */
bool tracks_next_is_free(struct executor *executor, tutti_status *status);
/* Returns the answer of tracks_next_is_free without comparing fingerprints, recording or adding a wait. */
bool tracks_next_may_be_free(const struct executor *executor);
/* True if the peer has arrived in the last operation of the track. */
bool track_is_reached_by_peer(const struct executor *executor, int peer, int track);
/* Ends the operation: chooses the track of the next one. */
void tracks_end_operation(struct executor *executor);
