/* The fabric over plain TCP sockets. Two processes share one connection for all their groups. It needs no library. */
#pragma once
#include "backend/transports/fabric/fabric.h"

extern const struct fabric_operations tcp_operations;
extern struct fabric tcp_fabric;
