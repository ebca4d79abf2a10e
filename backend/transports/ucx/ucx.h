/* The fabric over UCX (https://openucx.org, UCP 1.13 or later), which is opened with dlopen when it is first needed.
   One worker serves a process and one endpoint a pair of processes, whatever the number of groups. */
#pragma once
#include "backend/transports/fabric/fabric.h"

extern struct fabric ucx_fabric;
/* For tutti info: the library that is used or would be, its version and transports; or why there is none, with what to
   do about it. */
void ucx_describe(char *out, size_t bytes);
