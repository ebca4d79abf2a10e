/* Threads add communicators by a push on a list without locks. The progress thread takes all of them at once. */
#include "backend/engine/progress_list.h"
#include "backend/engine/comm.h"

static struct progress_list {
    _Atomic uint32_t bell, sleepers;
    /* Communicators that the progress thread has not taken yet, newest first. */
    _Atomic(tutti_comm *) added;
} progress_list;

void progress_list_reset_after_fork(void) { progress_list = (struct progress_list){ .bell = 0 }; }
void progress_thread_wake(void) { word_ring_bell(&progress_list.bell, &progress_list.sleepers, false); }
bool progress_list_add(tutti_comm *comm)
{
    if (atomic_fetch_add(&comm->progress_entry.requests, 1)) return false;
    tutti_comm *first = atomic_load(&progress_list.added);
    do comm->progress_entry.next = first;
    while (!atomic_compare_exchange_weak(&progress_list.added, &first, comm));
    return true;
}
void progress_thread_schedule(tutti_comm *comm)
{
    progress_list_add(comm);
    progress_thread_wake();
}
void progress_list_await_removal(tutti_comm *comm)
{
    for (int64_t n = 0; atomic_load(&comm->progress_entry.requests); n++) {
        progress_thread_wake();
        group_back_off(&comm->group, n);
    }
}
void progress_list_await(struct wait_set *set)
{
    wait_set_add(set, &progress_list.bell, atomic_load(&progress_list.bell), &progress_list.sleepers, false);
}
bool progress_list_take_added(tutti_comm **list)
{
    tutti_comm *arrived = atomic_exchange(&progress_list.added, NULL), *next;
    bool some = arrived;
    for (; arrived; arrived = next) {
        next = arrived->progress_entry.next;
        arrived->progress_entry.next = *list;
        *list = arrived;
    }
    return some;
}

/* ---- the bells ---- */
void driver_wake(tutti_comm *comm) { word_ring_bell(&comm->submission.bell, &comm->submission.bell_waiters, false); }
void comm_wake_driver(tutti_comm *comm)
{
    driver_wake(comm);
    progress_thread_wake();
}
