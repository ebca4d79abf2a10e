/* Exchanges uneven counts through the segment. Part of the executor. */
#pragma once
#include "backend/execute/execute.h"

/* Writes this rank's counts into the segment and its declaration, before the roll call. */
tutti_status counts_publish_own(struct executor *executor);
/* Compares the counts of the ranks of this host after the roll call. OK: sets run.extent to the longest block.
   MISMATCH: they do not agree. */
tutti_status counts_compare_all(struct executor *executor);
