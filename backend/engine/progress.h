/* The progress thread: one per process, from the first communicator to the last. It drives those that are in its hands,
 * sleeps on all their words at once, and keeps one for a second after its last work. */
#pragma once
#include "backend/engine/driver.h"

struct listing {                                        /* a communicator in the progress thread's hands */
    _Atomic uint64_t scheduled;                         /* of any thread: > 0: it is; counts the askings */
    /* of the progress thread */
    tutti_comm *next;
    uint64_t answered, noticed;                         /* the askings it has answered last, and found another at */
    bool was_open;                                      /* when it had been there */
    int64_t idle_until_ms;                           /* it stays in its hands until then although nothing is open */
};
tutti_status engine_acquire(void);                      /* starts the thread when first used */
void engine_release(void);
void engine_ring(void);                                 /* wakes it */
/* Into its hands. False: it was there already, and so its bell is among what that thread sleeps on. */
bool engine_list_add(tutti_comm *comm);
void engine_schedule(tutti_comm *comm);                 /* both */
void engine_forget(tutti_comm *comm);                   /* returns when it has let go of the communicator */
unsigned process_generation(void);                      /* changes with fork */
void engine_watch_forks(void);                          /* from now on it does; engine_acquire calls it */
