/* Ranks over UCX, on loopback. */
#pragma once
#include "tests/unit/transports/ranks.h"

enum { SKIPPED = 77 };   /* what a test returns then */
bool ucx_is_there(void); /* prints what there is, or why there is none */
/* threads of one process, which share its worker */
void ranks_ucx_threads(int size, enum waiting waiting, body *each);
void ranks_ucx_processes(int size, enum waiting waiting, body *each);
