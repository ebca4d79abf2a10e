/* Which of the operations that this process has under way go first. While those of a communicator with a higher
 * priority move, each other one has one tile under way at a time: enough to fill what they leave of the network. Who is
 * more urgent but waits for another rank keeps nobody: it counts for a moment after it has last moved. */
#pragma once
#include "include/tutti.h"
#include <stdatomic.h>

extern _Atomic int64_t precedence_moment_ns;            /* how long a moment is */
/* An operation of this priority, not the usual one, has moved; or is over. */
void precedence_record(int priority, bool over);
bool precedence_is_deferred(int priority);                    /* true: it is not to begin more now */
