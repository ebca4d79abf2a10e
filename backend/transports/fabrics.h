/* The fabrics there are, for those who choose one by name. */
#pragma once
#include "backend/transports/fabric/fabric.h"

enum { FABRIC_UNKNOWN = -1 };
/* By a number that all processes agree on, from 0; NULL: there are no more. */
struct fabric *fabric_at(int number);
const char *fabric_name(int number); /* NULL: likewise */
int fabric_number(const char *name); /* empty: the default of this machine, which stays so */
/* Several: the set of those that are named, as in "verbs,ucx", or by an empty text the default; bit k is fabric k. 0:
   one is not known, which is told in `unknown` (or NULL). */
enum { FABRIC_TEXT_BYTES = 64 };
unsigned fabrics_parse(const char *names, char unknown[FABRIC_TEXT_BYTES]);
void fabrics_print(unsigned set, char out[FABRIC_TEXT_BYTES]); /* "ucx and verbs" */
/* The default where Linux shows the RDMA devices in that folder: ucx if a port of one is active, tcp if none is. UCX is
   for hardware: over TCP it is slower than sockets, and ends the program in cases that sockets survive. */
int fabric_default(const char *devices);
