/* The fabric over verbs of our own, on libibverbs of rdma-core, which is opened with dlopen when it is first needed. */
#pragma once
#include "backend/transports/fabric/fabric.h"

extern const struct fabric_operations verbs_operations;
extern struct fabric verbs_fabric;
/* For tutti info: the library and the ports that are there, which of them serve and by which address; or why there is
   none, with what to do about it. */
void verbs_describe(char *out, size_t bytes);
