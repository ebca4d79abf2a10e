/* Pairs messages: the k-th send from a to b is the k-th receive of b from a. (a, b, k) is the message's name, so ranks
 * need no negotiation. */
#pragma once
#include "backend/schedule/schedule.h"

/* A step of a rank. */
struct position { int rank, step; };
/* The two ends of every message of a plan. */
struct match;
/* Pairs the messages of the plan, which must outlive the result. NULL: out of memory. */
struct match *match_create(const struct plan *plan);
void match_destroy(struct match *match);
/* Returns the other end of the message that this step posts. Its rank is -1 if the step is not a message, or the other
   end is unknown. */
struct position match_find_other_end(const struct match *match, int rank, int step);
/* True if every message between members has two ends with the same number of chunks. */
bool match_is_complete(const struct match *match);
