/* The world that the search of backend/agree explores: four ranks on two hosts, or on more. A state holds four objects,
   the words that each host shares, links with what is under way on them, and first messages of operations. An event is
   one step of one of them; which are possible, and what each does, is in world.c. The clock stands still, and an armed
   timer may ring when enum haste says: so what is found holds for every speed of ranks and messages. */
#pragma once
#include "backend/agree/agree.h"
#include <stdio.h>

enum { RANKS = 4, HOSTS = 4, OPERATIONS = 2, DEPTH = 8 };
/* What a rank calls: messages to and from its counterpart; only ranks 0 and 1 send; only 2 and 3; only the ranks of the
   host meet, for one thing or another. END: it destroys the communicator. REST: it does something else for ever. */
enum pattern { END, REST, BOTH, DOWN, UP, HOME, AWAY };
/* When a timer may ring: when nothing else can happen; so all but those of questions; whenever it is set. */
enum haste { PATIENT, CURIOUS, HASTY };
struct scenario {
    const char *name;
    int host_of[RANKS];                                 /* -1 for rank 3: there are three ranks */
    unsigned char program[RANKS][OPERATIONS + 1];
    int deaths, aborts, breaks, drops, stops;           /* of each at most so many */
    int leaves;                                         /* 1: who has been told a failure may leave */
    enum haste haste;
};
enum link { OPEN, BROKEN, CLOSED, NOTICED };            /* CLOSED: by who has left, behind its BYE */
enum at { BETWEEN, ARRIVED, AGREED, REFUSED };          /* AGREED: on the host, as by roll_call of backend/execute */
struct world {
    struct agree object[RANKS];
    struct agree_peer peers[RANKS][RANKS];
    int speakers[RANKS][HOSTS];
    struct agree_cause record[HOSTS], decision[HOSTS];
    unsigned char has_record[HOSTS], has_decision[HOSTS];
    unsigned char dead[RANKS], left[RANKS], told[RANKS], stopped[RANKS], at[RANKS], operation[RANKS], succeeded[RANKS];
    unsigned char sent[RANKS][RANKS], got[RANKS][RANKS];               /* first messages: a bit for each operation */
    unsigned char link[RANKS][RANKS], left_seen[RANKS][RANKS];
    unsigned char deaths, aborts, breaks, drops, stops; /* still to come */
    unsigned char broke;                                /* a link between living ranks */
    unsigned char found[RANKS][3];                      /* cause found here: 1 + kind, operation, 1 + other */
    unsigned char known[RANKS];                         /* the least operation of a failure it was told of; 255: none */
    unsigned char refused[HOSTS];                       /* I7: succeeds on nobody of the host; 255: none */
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
struct event { unsigned char kind, a, b; };
enum { MOST_EVENTS = 160 };

void world_init(struct world *w, const struct scenario *s);
int world_events(const struct world *w, const struct scenario *s, struct event out[MOST_EVENTS]);
/* NULL, or the invariant that the event has broken; with `log`, says what happens. */
const char *world_step(struct world *w, const struct scenario *s, struct event e, FILE *log);
const char *world_check(const struct world *w, const struct scenario *s);
bool world_is_final(const struct world *w, const struct scenario *s);  /* all living ranks have ended */
const char *world_check_final(const struct world *w, const struct scenario *s);
size_t world_pack(const struct world *w, unsigned char *out);          /* equal states are equal bytes */
void world_unpack(struct world *w, const struct scenario *s, const unsigned char *from);
void world_connect(struct world *w, const struct scenario *s);         /* after a copy */
static inline int host(const struct world *w, int r) { return w->object[0].layout.host_of[r]; }
static inline bool lives(const struct world *w, int r) { return !w->dead[r] && !w->left[r] && !w->stopped[r]; }
static inline enum pattern called(const struct scenario *s, int r, int n) { return s->program[r][n - 1]; }
