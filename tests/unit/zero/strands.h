/* Ranks that take turns on one thread. A *strand* is one thread of a rank (of the program, or of the async step) with
 * its own stack. It runs until it must wait, and then another strand runs. The clock advances only when a strand
 * sleeps.
 *
 * A run is deterministic. Fixed rules decide which strand is next. If a strand asks whether something is over, and both
 * answers are possible, the answer is a choice of the search. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum { MOST_RANKS = 4, MOST_CHOICES = 250 };
/* The choices of a run, in the order of the questions: 0 is the answer "not yet", 1 is "yes", for which the strand
   waits. */
struct choices { uint8_t taken[MOST_CHOICES]; int count, next; };
/* The order of turns, which shows missing waits: a slice that is written while it is read, or read before it is written
   or has arrived. `backwards`: the last strand that can continue is next, in place of the first. `writers_lag` and
   `readers_lag`: strands that are about to update a slice, or read one, continue only when no other strand can. `late`:
   a call that blocks no strand ends only when no strand can continue. */
struct adversary { bool backwards, writers_lag, readers_lag, late; };
/* INFEASIBLE: a strand waits for the answer "yes", but what it asks for never ends. */
enum ending { ALL_OVER, DEADLOCK, INFEASIBLE };

void strands_begin(struct choices *choices, struct adversary adversary);
void strand_start(int rank, void (*main)(void *), void *context);
/* Runs the strands until none can continue. Then it calls `ripen`, which ends a call for which strands may wait, and
   goes on if that returns true. */
enum ending strands_run(bool (*ripen)(void));
/* Returns true if a strand waits for that flag. */
bool strands_want(const bool *until);
/* Returns the rank of the strand that runs. */
int strand_rank(void);

/* ---- for the strand that runs ---- */
/* Waits until the flag is true, or waits are ended. */
void strand_await(const bool *until);
/* Asks whether the flag is true, which is a choice. If waits are ended, it returns the flag. */
bool strand_asks(const bool *whether);
/* Sets the answers that the strand gets from now on. YES: it waits for each flag. */
enum answers { AS_CHOSEN, NOT_YET, YES };
void strand_set_answers(enum answers answers);
/* To be called between two looks at memory that another strand will write. Waits if no strand may have written since
   the call before. */
void strand_watches(void);
/* Waits until no other strand can continue, if `lags` is true. */
void strand_lags(bool lags);

/* Reports a fault. The first text is kept, and all waits end with errors, so that strands clean up. */
void strands_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
void strands_end_waits(void);
/* Returns true if waits are ended. */
bool strands_have_ended_waits(void);
/* Returns the text of the first fault, or NULL. */
const char *strands_get_fault(void);
/* Prints what each strand does or waits for. */
void strands_describe(void);
/* Sets what the running strand does, for strands_describe. The text is not copied. */
void strand_does(const char *what);
