/* The check for interrupts: a function of the program that its thread calls now and then while it waits in a call, and
   which ends the wait, for example after a signal. A thread that calls it neither drives a communicator nor is inside
   one, so the function may wait for locks of other threads that call tutti. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* The time of the next check of a wait; 0 before the first look. */
struct interrupt_timer { int64_t due_ms; };
/* Sets the calling thread's check, or none (NULL). */
void interrupt_set_check(bool (*is_interrupted)(void));
/* Returns true if the calling thread has a check, and its time in this wait has come. A first look only sets the time.
   NULL: false. */
bool interrupt_is_due(struct interrupt_timer *timer);
/* Runs the calling thread's check, and returns its result: whether the wait must end. */
bool interrupt_run_check(void);
