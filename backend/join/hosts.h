/* Which ranks are on which hosts. Ranks of one host have proved it to each other (processes/host_election.h).
 * TUTTI_HOSTS simulates several hosts on one machine, so that ordinary tests run everything between hosts. */
#pragma once
#include "backend/engine/group.h"

/* Sets out[r] to the host of rank r of a job of `size` ranks, as `text`, the value of TUTTI_HOSTS, requests. "2" makes
   blocks, of which the first may be larger. "0,1,0,1" gives one number below `size` for each rank. Empty text sets all
   to 0. INVALID_ARGUMENT: the text does not fit the number of ranks. */
tutti_status hosts_parse_setting(const char *text, int size, int *out);
/* Returns a hash of the setting for that many ranks. It is equal on ranks that simulate the same hosts, and 0 for an
   empty setting. */
uint32_t hosts_setting_number(const char *text, int size);
/* Creates the layout from the members' records. INVALID_ARGUMENT: hosts are simulated, but the ranks are on several. */
tutti_status hosts_create_layout(const struct group *group, struct layout **out);
