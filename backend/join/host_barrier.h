/* The host barrier: all hosts wait for each other, when the ranks of each have joined. */
#pragma once
#include "backend/engine/comm.h"

/* Waits until all ranks of all hosts have joined, and sets *out to link costs that are equal on all hosts. The first
   rank of each host of a linked group calls it when the ranks of its host have joined. An error fails the group.
   TIMEOUT names two ranks and what to check. */
struct link_costs;
tutti_status host_barrier_wait(tutti_comm *comm, int64_t deadline_ms, struct link_costs *out);
