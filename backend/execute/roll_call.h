/* Who has come to the operation that begins, and do all mean the same? Part of the executor. */
#pragma once
#include "backend/execute/execute.h"

void fingerprint_make(struct executor *x);              /* of the declaration, its sequence included */
/* True: all have arrived, or all that this rank needs: tracks.h. *status is MISMATCH when one of them does something
   else. */
bool roll_call(struct executor *x, tutti_status *status);
