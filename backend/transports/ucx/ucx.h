/* The fabric over UCX (https://openucx.org, UCP 1.13 or later). The library is opened with dlopen when it is first
   needed. A process has one worker, and two processes share one connection, for any number of groups. */
#pragma once
#include "backend/transports/fabric/fabric.h"

extern struct fabric ucx_fabric;
/* Describes the UCX library for `tutti info`: its version and transports, or why it is missing and what to do. */
void ucx_describe(char *out, size_t bytes);
