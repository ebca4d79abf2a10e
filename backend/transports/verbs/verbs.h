/* The fabric over libibverbs of rdma-core, which is opened with dlopen when it is first needed. */
#pragma once
#include "backend/transports/fabric/fabric.h"

extern const struct fabric_operations verbs_operations;
extern struct fabric verbs_fabric;
/* Describes the fabric for `tutti info`: the library, which ports are usable and by which address; or why the fabric is
   unavailable and what to do. */
void verbs_describe(char *out, size_t bytes);
