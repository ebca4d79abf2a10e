/* The networks between the hosts of a group, and the addresses by which other hosts reach this process. All networks
   that TUTTI_TRANSPORT names are used beside each other. */
#pragma once
#include "include/tutti.h"

/* Opens the networks of a linked group (group_uses_links) and connects them to its router, which exists already. */
tutti_status networks_connect(tutti_comm *comm);
