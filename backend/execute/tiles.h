/* Runs the tiles in flight. Part of the executor. */
#pragma once
#include "backend/execute/execute.h"

/* Runs the operation as far as it gets. Returns IN_PROGRESS, OK, or MISMATCH. */
tutti_status executor_run_tiles(struct executor *executor);
