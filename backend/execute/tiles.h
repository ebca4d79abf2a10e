/* The scan over the tiles in flight. Part of the executor. */
#pragma once
#include "backend/execute/execute.h"

/* As far as it gets: IN_PROGRESS, OK, or MISMATCH. */
tutti_status tiles_run(struct executor *x);
