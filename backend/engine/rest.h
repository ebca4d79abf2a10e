/* Rest: the state of a small asynchronous operation that was started but not finished. Waking a thread for it costs
 * more than the operation. So the thread that starts it takes its first turn, and an unfinished operation then rests:
 * no thread drives it until it is needed, here (wait, test, hasten) or on another rank, which rings the bells of
 * ranks that have DEFERRED. In a group of several hosts nothing rests, because a waiting rank could not ring. */
#pragma once
#include "backend/engine/driver.h"

bool rest_is_small(const tutti_comm *comm, const struct operation *op);
/* What is open is so little that it can wait until somebody needs it, here or on another rank. Driver only. */
bool rest_is_possible(tutti_comm *comm);
void rest_record(tutti_comm *comm, bool deferred);
void comm_awake(tutti_comm *comm);                      /* somebody polls: no peer needs to ring; driver only */
/* Somebody waits: peers whose part rests are to do it now. */
void peers_rouse(const tutti_comm *comm);
