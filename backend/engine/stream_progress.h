/* The work of the stream thread for one communicator. */
#pragma once
#include "backend/engine/stream_comm.h"

/* OPEN: operations are open, or the communicator is leaving. OVER: the communicator has left, and no rank uses the
   slots any more, so the caller closes it. */
enum stream_visit { STREAM_VISIT_IDLE, STREAM_VISIT_OPEN, STREAM_VISIT_OVER };
/* Polls the streams of a communicator, ends operations, and passes failures on. *progressed becomes true if an
   operation has ended. */
enum stream_visit stream_comm_visit(struct stream_comm *streams, bool *progressed);
