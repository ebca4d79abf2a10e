/* Exchanges uneven counts through the segment. Part of the executor. */
#pragma once
#include "backend/execute/execute.h"

/* Writes this rank's counts into the segment; called before the roll call. */
tutti_status counts_publish_own(struct executor *executor);
/* Compares the counts of all ranks after the roll call. Sets run.extent and returns OK, or MISMATCH. */
tutti_status counts_compare_all(struct executor *executor);
