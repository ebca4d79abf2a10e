/* The list of all fabrics, for callers that choose one by name. */
#pragma once
#include "backend/transports/fabric/fabric.h"

enum { FABRIC_UNKNOWN = -1 };
/* Returns the fabric of this number, or NULL if no fabric has it. Numbers count from 0 and are equal in all
   processes. */
struct fabric *fabric_by_number(int number);
/* Returns the name of the fabric of this number, or NULL if no fabric has it. */
const char *fabric_name(int number);
/* Returns the number of the named fabric, or FABRIC_UNKNOWN. An empty name selects the default of this machine, which
   is chosen once per process. */
int fabric_number_by_name(const char *name);
enum { FABRIC_TEXT_BYTES = 64 };
/* Returns the set of the fabrics in a list of names such as "verbs,ucx", or of the default if `names` is empty. Bit k
   is fabric k. 0: a name is unknown, and is copied to `unknown` unless that is NULL. */
unsigned fabrics_parse_names(const char *names, char unknown[FABRIC_TEXT_BYTES]);
/* Writes the names of the fabrics in the set, such as "ucx and verbs". */
void fabrics_print_names(unsigned set, char out[FABRIC_TEXT_BYTES]);
/* Returns the number of the default fabric of a machine that lists its RDMA devices in the folder `devices`: ucx if a
   port is active, otherwise tcp.
   UCX is for hardware: over TCP it is slower than sockets, and it aborts the program in cases that sockets survive. */
int fabric_find_default(const char *devices);
