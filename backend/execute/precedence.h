/* Decides which of this process's running operations go first. While operations of a higher priority move, each lower
 * one has only one tile in flight: enough to use the rest of the network. An urgent operation that waits for another
 * rank holds back the others only for a moment after it has last moved. */
#pragma once
#include "include/tutti.h"
#include <stdatomic.h>

/* The length of that moment in ns. */
extern _Atomic int64_t precedence_moment_ns;
/* Records that an operation of this priority (above 0) has moved now, or is over. */
void precedence_record_progress(int priority, bool is_over);
/* True if operations of this priority must not begin another tile now. */
bool precedence_must_defer(int priority);
