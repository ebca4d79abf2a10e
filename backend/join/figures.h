/* What the ranks of a host tell each other of the machine. */
#pragma once
#include "backend/join/crossing.h"

void figures_introduce(const tutti_comm *comm);         /* before this rank says that it has joined */
/* When all have. crossings: between hosts, of the first rank of each; zero: not measured. */
tutti_status figures_agree(tutti_comm *comm, const struct crossings *crossings, int64_t deadline_ms);
