/* Runs the tiles in flight. Part of the executor. */
#pragma once
#include "backend/execute/execute.h"

/* Runs the operation up to unmet waits (IN_PROGRESS) or its end (OK). MISMATCH: a rank has called something else. */
tutti_status executor_run_tiles(struct executor *executor);
