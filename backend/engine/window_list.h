/* The windows of a communicator. Any thread may attach and detach one. */
#pragma once
#include "backend/window/window.h"

/* Adds a window to the communicator, and receives the messages of its peers. Returns OK or the error that failed the
   communicator, which then has no window. */
tutti_status windows_attach(tutti_comm *comm, struct tutti_window *window);
/* Takes the window out of the communicator. Afterwards no living peer uses its memory; a peer that is stopped may do so
   after 2 s, which is logged. Later operations on the window are refused. Does nothing a second time. */
void windows_detach(tutti_comm *comm, struct tutti_window *window);
/* Detaches all windows. The caller is the driver of a communicator that leaves. */
void windows_detach_all(tutti_comm *comm);
