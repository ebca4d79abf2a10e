/* The life of a fabric in its process. The first group that needs the fabric opens it, and the last one closes it. A
 * child of fork starts again with an empty fabric and leaves the inherited state, which is its parent's, alone. */
#include "backend/transports/fabric/fabric.h"
#include "backend/base/random.h"
#include "backend/transports/fabric/fabric_transport.h"
#include <string.h>
#include <time.h>

/* ---- fork ---- */
static pthread_mutex_t known_fabrics_lock = PTHREAD_MUTEX_INITIALIZER;
/* The fabrics that were ever opened, which a forked child must reset. */
static struct fabric *known_fabrics;
/* Takes all locks before a fork, so that the child gets them in a known state. */
static void fabrics_lock_before_fork(void)
{
    pthread_mutex_lock(&known_fabrics_lock);
    for (struct fabric *fabric = known_fabrics; fabric; fabric = fabric->next) fabric_lock(fabric);
}
static void fabrics_unlock_in_parent(void)
{
    for (struct fabric *fabric = known_fabrics; fabric; fabric = fabric->next) pthread_mutex_unlock(&fabric->lock);
    pthread_mutex_unlock(&known_fabrics_lock);
}
/* Makes all fabrics of a forked child empty and closed. */
static void fabrics_reset_in_child(void)
{
    for (struct fabric *fabric = known_fabrics; fabric; fabric = fabric->next)
        *fabric = (struct fabric){ .operations = fabric->operations, .is_known = true, .next = fabric->next };
    for (struct fabric *fabric = known_fabrics; fabric; fabric = fabric->next) pthread_mutex_init(&fabric->lock, NULL);
    pthread_mutex_init(&known_fabrics_lock, NULL);
}
/* Registers the fork handlers, once per process. */
static void fabrics_register_fork(void)
{
    pthread_atfork(fabrics_lock_before_fork, fabrics_unlock_in_parent, fabrics_reset_in_child);
}
/* Adds the fabric to known_fabrics. */
static void fabric_register_for_fork(struct fabric *fabric)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fabrics_register_fork);
    pthread_mutex_lock(&known_fabrics_lock);
    if (!fabric->is_known) {
        fabric->next = known_fabrics;
        known_fabrics = fabric;
        fabric->is_known = true;
    }
    pthread_mutex_unlock(&known_fabrics_lock);
}

/* ---- opening and closing ---- */
/* Sleeps for 20 us without the lock, so that other threads can make progress. */
void fabric_pause_unlocked(struct fabric *fabric)
{
    pthread_mutex_unlock(&fabric->lock);
    nanosleep(&(struct timespec){ 0, 20000 }, NULL);
    fabric_lock(fabric);
}
/* Stops the thread, disconnects all peers and frees the network's state. Called with the lock. */
static void fabric_stop(struct fabric *fabric)
{
    fabric->is_stopping = true;
    fabric_thread_stop(fabric);
    fabric->operations->shutdown(fabric);
    for (struct saved_msg *msg; (msg = saved_msgs_pop(&fabric->early)) != NULL;) saved_msg_free(fabric, msg);
    fabric->operations->finish(fabric);
    fabric_ops_free_all(fabric);
    fabric->is_stopping = false;
}
/* Starts the network and its thread. Called with the lock; after an error the caller calls fabric_stop. */
static tutti_status fabric_start(struct fabric *fabric, const struct fabric_environment *environment)
{
    TRY(random_fill(&fabric->life, sizeof fabric->life));
    TRY(fabric->operations->start(fabric, environment));
    return fabric_thread_start(fabric);
}
tutti_status fabric_open(struct fabric *fabric, const unsigned char process[16],
    const struct fabric_environment *environment, void *address, size_t *bytes)
{
    fabric_register_for_fork(fabric);
    fabric_lock(fabric);
    while (fabric->is_stopping) fabric_pause_unlocked(fabric);
    memcpy(fabric->process, process, sizeof fabric->process);
    tutti_status status = fabric->users ? TUTTI_OK : fabric_start(fabric, environment);
    if (status == TUTTI_OK) {
        fabric->users++;
        memcpy(address, fabric->address, fabric->address_bytes);
        *bytes = fabric->address_bytes;
    } else if (!fabric->users) fabric_stop(fabric);
    pthread_mutex_unlock(&fabric->lock);
    return status;
}
void fabric_close(struct fabric *fabric)
{
    fabric_lock(fabric);
    if (fabric->users > 0 && --fabric->users == 0) fabric_stop(fabric);
    pthread_mutex_unlock(&fabric->lock);
}
