/* Ranks that make different calls. */
#pragma once
#include "include/tutti.h"

/* Fails with a description of both ranks' calls. Driver only. */
tutti_status comm_fail_mismatch(tutti_comm *comm);
