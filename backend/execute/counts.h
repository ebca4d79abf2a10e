/* Uneven counts, by way of the segment. Part of the executor. */
#pragma once
#include "backend/execute/execute.h"

tutti_status counts_announce(struct executor *x);               /* mine, before the roll call */
tutti_status counts_agree(struct executor *x);          /* after it: OK and run.extent, or MISMATCH */
