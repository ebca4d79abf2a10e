/* Which networks lead to the ranks of other hosts, and how those are reached: all that TUTTI_TRANSPORT names, beside
   each other. */
#pragma once
#include "include/tutti.h"

tutti_status networks_connect(tutti_comm *comm); /* of a group that is linked, when its router is there */
