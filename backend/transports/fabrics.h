/* The fabrics there are, for those who choose one by name. */
#pragma once
#include "backend/transports/fabric/fabric.h"

enum { FABRIC_UNKNOWN = -1 };
/* By a number that all processes agree on, from 0; NULL: there are no more. */
struct fabric *fabric_at(int number);
const char *fabric_name(int number); /* NULL: likewise */
int fabric_number(const char *name); /* empty: the default of this machine, which stays so */
/* The default where Linux shows the RDMA devices in that folder: ucx if a port of one is active, tcp if none is. UCX is
   for hardware: over TCP it is slower than sockets, and ends the program in cases that sockets survive. */
int fabric_default(const char *devices);
