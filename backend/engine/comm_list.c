#include "backend/engine/comm_list.h"
#include "backend/base/clock.h"
#include "backend/engine/comm.h"
#include <pthread.h>

static struct comm_list {
    pthread_mutex_t lock;
    tutti_comm *first, *last;
} comm_list = { .lock = PTHREAD_MUTEX_INITIALIZER };

void comm_list_add(tutti_comm *comm)
{
    struct comm_entry *entry = &comm->entry;
    pthread_mutex_lock(&comm_list.lock);
    *entry = (struct comm_entry){ .previous = comm_list.last, .is_listed = true, .added_ms = clock_ms() };
    if (comm_list.last) comm_list.last->entry.next = comm;
    else comm_list.first = comm;
    comm_list.last = comm;
    pthread_mutex_unlock(&comm_list.lock);
}
void comm_list_mark_joined(tutti_comm *comm) { atomic_store(&comm->entry.has_joined, true); }
void comm_list_remove(tutti_comm *comm)
{
    struct comm_entry *entry = &comm->entry;
    pthread_mutex_lock(&comm_list.lock);
    if (entry->is_listed) {
        *(entry->previous ? &entry->previous->entry.next : &comm_list.first) = entry->next;
        *(entry->next ? &entry->next->entry.previous : &comm_list.last) = entry->previous;
        entry->is_listed = false;
    }
    pthread_mutex_unlock(&comm_list.lock);
}
void comm_list_visit(void (*visit)(const tutti_comm *comm, void *context), void *context)
{
    pthread_mutex_lock(&comm_list.lock);
    for (const tutti_comm *comm = comm_list.first; comm; comm = comm->entry.next) visit(comm, context);
    pthread_mutex_unlock(&comm_list.lock);
}
void comm_list_reset_after_fork(void) { comm_list = (struct comm_list){ .lock = PTHREAD_MUTEX_INITIALIZER }; }
