/* Pairs messages: the k-th send from a to b is the k-th receive of b from a. (a, b, k) is the message's name; nothing
 * is ever negotiated. */
#pragma once
#include "backend/schedule/schedule.h"

struct position { int rank, step; };
struct match;
struct match *match_create(const struct plan *p);           /* NULL: out of memory */
void match_destroy(struct match *m);
/* The other end of the message that this step posts; rank -1 when it is no message, or the other end is unknown. */
struct position match_of(const struct match *m, int rank, int step);
/* Every message between members has two ends of the same number of chunks. */
bool match_complete(const struct match *m);
