/* The windows of a communicator. Any thread may attach and detach one. */
#pragma once
#include "backend/engine/operation.h"

/* Runs an operation on the window itself (any after WINDOW_AWAIT), and returns when it is over. */
tutti_status window_run_operation(tutti_comm *comm, struct tutti_window *window, enum window_kind kind,
    const void *input);
/* Takes the window out of the communicator. Afterwards no living peer uses its memory, except a peer of this host that
   has not stopped writing within 2 s, which is logged. Later operations on the window are refused. Does nothing a
   second time. `kind` is WINDOW_DETACH, or WINDOW_FREE to report to the other ranks that this rank does so alone. */
void windows_detach(tutti_comm *comm, struct tutti_window *window, enum window_kind kind);
/* Detaches all windows. The caller is the driver of a communicator that leaves. */
void windows_detach_all(tutti_comm *comm);
