/* What the ranks of a host tell each other of the machine. */
#pragma once
#include "backend/engine/comm.h"

void figures_introduce(const tutti_comm *comm);         /* before this rank says that it has joined */
tutti_status figures_agree(tutti_comm *comm, int64_t deadline_ms);     /* when all have */
