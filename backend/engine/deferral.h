/* Deferred operations: small asynchronous operations that were started but not finished. Waking a thread for one costs
 * more than the operation itself. So the thread that starts it takes its first turn, and an unfinished operation is
 * then deferred. No thread is woken for it until it is needed: a caller here waits, tests or detaches, or a waiting
 * rank rings the bells of ranks that are DEFERRED. The progress thread visits it every 20 ms (most_sleep_ms). In a
 * group of several hosts no operation is deferred, because a rank of another host could not ring. */
#pragma once
#include "backend/engine/driver.h"

/* Returns true if the operation's bytes are few and all ranks are on one host, so that it may be deferred. */
bool operation_is_small(const tutti_comm *comm, const struct operation *op);
/* Returns true if the open operations are few and small enough to be deferred, and no thread waits for them. Driver
   only. */
bool driver_may_defer(tutti_comm *comm);
/* Records whether the open operations are deferred. Driver only. */
void driver_set_deferred(tutti_comm *comm, bool deferred);
/* Publishes that this rank needs no ring of its bell, because a thread polls the communicator. Driver only. */
void comm_stop_listening(tutti_comm *comm);
/* Rings the bells of peers that have deferred their part, because this rank waits for them. */
void peers_ring_deferred(const tutti_comm *comm);
