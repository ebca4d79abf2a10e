/* The world that the search of backend/agree explores: three or four ranks on two or more hosts. A state has the
   objects of the ranks, the records of the hosts, the links with the messages on them, and the first messages of
   operations. An event is one step of a rank or of a link; world.c has the possible events of a state, and what each
   does. The clock stands still. A timer that is set may expire whenever enum haste allows it, so the results hold for
   every speed of ranks and messages. */
#pragma once
#include "backend/agree/agree.h"
#include <stdio.h>

/* A rank has at most OPERATIONS operations, and a link at most DEPTH messages. */
enum { RANKS = 4, HOSTS = 4, OPERATIONS = 2, DEPTH = 8 };
/* The call of a rank. BOTH: it sends a message to its counterpart (0 and 2, 1 and 3) and receives one. DOWN: only ranks
   0 and 1 send. UP: only ranks 2 and 3 send. HOME, AWAY: two different calls without messages to other hosts. END: it
   destroys the communicator. REST: it makes no further call. */
enum pattern { END, REST, BOTH, DOWN, UP, HOME, AWAY };
/* PATIENT: a timer expires only if no other event is possible. CURIOUS: only the timer for ASK may expire earlier.
   HASTY: every timer may. */
enum haste { PATIENT, CURIOUS, HASTY };
/* The bounds of one search. `deaths` to `stops` are the most events of each kind. */
struct scenario {
    const char *name;
    /* -1 for rank 3 means that there are three ranks. */
    int host_of[RANKS];
    unsigned char program[RANKS][OPERATIONS + 1];
    int deaths, aborts, breaks, drops, stops;
    /* 1: a rank with a decision may leave. */
    int leaves;
    enum haste haste;
};
/* The link from one rank to another. CLOSED: the sender has left and sent BYE. NOTICED: the receiver knows the end. */
enum link { OPEN, BROKEN, CLOSED, NOTICED };
/* The progress of a rank in its operation. AGREED: the ranks of its host have made the same call (the roll call of
   backend/execute). REFUSED: agree_try_end_operation returned false. */
enum at { BETWEEN, ARRIVED, AGREED, REFUSED };
struct world {
    struct agree object[RANKS];
    struct agree_peer peers[RANKS][RANKS];
    int speakers[RANKS][HOSTS];
    struct agree_cause record[HOSTS], decision[HOSTS];
    unsigned char has_record[HOSTS], has_decision[HOSTS];
    /* told: the rank had a decision when it left. at: an enum at. operation: the last one that the rank has begun. */
    unsigned char dead[RANKS], left[RANKS], told[RANKS], stopped[RANKS], at[RANKS], operation[RANKS], succeeded[RANKS];
    /* The first messages of operations that are on a link [from][to], and that have arrived [to][from]: a bit for each
       operation. */
    unsigned char sent[RANKS][RANKS], got[RANKS][RANKS];
    unsigned char link[RANKS][RANKS], left_seen[RANKS][RANKS];
    /* The most events of each kind that may still happen. */
    unsigned char deaths, aborts, breaks, drops, stops;
    /* A link between living ranks has broken. */
    unsigned char broke;
    /* The cause that the rank has found: 1 + kind, operation, 1 + other. */
    unsigned char found[RANKS][3];
    /* The first operation that fails, as far as the rank knows; 255: it knows of no failure. */
    unsigned char known[RANKS];
    /* The operation that must not succeed on any rank of the host (I7); 255: none. */
    unsigned char refused[HOSTS];
    unsigned char count[RANKS][RANKS];
    struct agree_message queue[RANKS][RANKS][DEPTH];
};
enum event_kind {
    BEGIN,
    ROLL_CALL,
    FINISH,
    LEAVE,
    SEE_RECORD,
    SEE_DECISION,
    SEE_LEFT,
    ALONE,
    FIRST_MESSAGE,
    DELIVER,
    NOTICE,
    ASK_TIMER,
    SUSPECT_TIMER,
    REPEAT_TIMER,
    SETTLE_TIMER,
    FAULTS,
    DIE = FAULTS,
    STOP,
    ABORT,
    BREAK,
    DROP,
    LOSE,
    LOSE_FIRST,
    EVENT_KINDS
};
/* An event of rank a, or of the link from rank a to rank b. */
struct event { unsigned char kind, a, b; };
enum { MOST_EVENTS = 160 };

void world_init(struct world *w, const struct scenario *s);
/* Sets `out` to the possible events, and returns their number. */
int world_events(const struct world *w, const struct scenario *s, struct event out[MOST_EVENTS]);
/* Performs an event. Returns NULL, or the invariant that it has broken. With `log`, prints what happens. */
const char *world_step(struct world *w, const struct scenario *s, struct event e, FILE *log);
/* Returns NULL, or the invariant that the state breaks. */
const char *world_check(const struct world *w, const struct scenario *s);
/* True if all living ranks report a decision, or if all of them have reached REST. */
bool world_is_final(const struct world *w, const struct scenario *s);
/* Returns NULL, or the invariant that the final state breaks. */
const char *world_check_final(const struct world *w, const struct scenario *s);
/* Writes the state as bytes, which are equal for equal states. Returns their number. */
size_t world_pack(const struct world *w, unsigned char *out);
void world_unpack(struct world *w, const struct scenario *s, const unsigned char *from);
/* Makes the objects point to the arrays of this state, after it was copied. */
void world_connect(struct world *w, const struct scenario *s);
static inline int host(const struct world *w, int r) { return w->object[0].layout.host_of[r]; }
static inline bool lives(const struct world *w, int r) { return !w->dead[r] && !w->left[r] && !w->stopped[r]; }
static inline enum pattern called(const struct scenario *s, int r, int n) { return s->program[r][n - 1]; }
