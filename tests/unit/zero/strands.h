/* Ranks that take turns on one thread. A *strand* is one thread of a rank (the program's, or that of a step's tail)
 * with a stack of its own; it runs until it has to wait, then another one does. Time stands still but for those who
 * sleep.
 *
 * Nothing here is left to chance: which strand is next follows from the rules, and each answer that a strand may get
 * either way, when it asks whether something is over, is a choice of the search. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum { MOST_RANKS = 4, MOST_CHOICES = 250 };
/* Of a run, in the order in which they come. 0: not yet; 1: as soon as it is over. */
struct choices { uint8_t taken[MOST_CHOICES]; int count, next; };
/* Whose turn comes early or late, for what no rank waits for properly: a slice that is written while it is read, or
   read before it is written, or before it has come. Who lags goes on when nobody else can; late: a call is over when
   nobody can go on without. */
struct adversary { bool backwards, writers_lag, readers_lag, late; };
enum ending { ALL_OVER, DEADLOCK, INFEASIBLE };         /* infeasible: somebody was to be told yes, and it never is */

void strands_begin(struct choices *choices, struct adversary adversary);
void strand_start(int rank, void (*main)(void *), void *context);
/* Until no strand can go on, and `ripen` says false: that nothing has ended, either, which they may wait for. */
enum ending strands_run(bool (*ripen)(void));
bool strands_want(const bool *until);                   /* one of them waits for that */
int strand_rank(void);                                  /* of the strand that runs */

/* Of the strand that runs. */
void strand_await(const bool *until);                   /* or until waits are ended */
bool strand_asks(const bool *whether);                  /* a choice; false also where waits are ended and it is not */
enum answers { AS_CHOSEN, NOT_YET, YES };               /* YES: it waits, whether that is for ever or not */
void strand_hears(enum answers answers);                /* from now on */
void strand_watches(void);                              /* memory that another one will write to */
void strand_lags(bool lags);
/* Something is wrong: the first text is kept, and all waits end, with errors, so that strands clean up. */
void strands_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
void strands_end_waits(void);
bool strands_end(void);                                 /* whether waits are ended */
const char *strands_what_is_wrong(void);                /* or NULL */
void strands_describe(void);                            /* prints what each waits for */
void strand_does(const char *what);                     /* for that; a literal */
