/* The fabrics there are, for those who choose one by name. */
#pragma once
#include "backend/transports/fabric/fabric.h"

enum { FABRIC_UNKNOWN = -1 };
/* By a number that all processes agree on, from 0; NULL: there are no more. The first is the default. */
struct fabric *fabric_at(int number);
const char *fabric_name(int number); /* NULL: likewise */
int fabric_number(const char *name); /* empty: the default */
