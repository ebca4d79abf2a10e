/* Rest. Most asynchronous calls are waited for at once, and to wake the progress thread costs more than a small
 * operation. So whoever starts one takes its first turn himself; what is left then *rests*: nobody drives it until
 * somebody needs it, here (wait, test, hasten) or on another rank, which rings the bells of ranks that say RESTS. Where
 * a group has several hosts nothing rests: who waits could not ring. */
#pragma once
#include "backend/engine/driver.h"

bool rest_is_small(const tutti_comm *comm, const struct operation *op);
/* What is open is so little that it can wait until somebody needs it, here or on another rank. Driver only. */
bool rest_is_possible(tutti_comm *comm);
void rest_record(tutti_comm *comm, bool rests);
void comm_awake(tutti_comm *comm);                      /* somebody polls: no peer needs to ring; driver only */
/* Somebody waits: peers whose part rests are to do it now. */
void peers_rouse(const tutti_comm *comm);
