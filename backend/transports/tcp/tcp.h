/* The fabric over plain TCP sockets: one connection between two processes, whatever the number of groups. It needs
   nothing but the kernel. */
#pragma once
#include "backend/transports/fabric/fabric.h"

extern const struct fabric_operations tcp_operations;
extern struct fabric tcp_fabric;
