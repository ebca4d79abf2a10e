/* Ranks of several hosts: where a process listens, which ranks can reach each other, and the links between hosts. */
#pragma once
#include "backend/engine/comm.h"

/* A rank that waits so long for another host while it joins logs the reason once, as a warning. */
enum { JOIN_WARN_MS = 10000 };
/* Returns true if TUTTI_TRANSPORT names a transport. */
bool transport_is_given(void);
/* Checks the settings of transports, of encryption and of ports. INVALID_ARGUMENT: TUTTI_TRANSPORT has an unknown name,
   and the text gives the nearest known one; or TUTTI_PORTS is no range. UNSUPPORTED: the transport cannot be
   encrypted. */
tutti_status transport_check(void);
/* Sets the contact of `mine`, the address at which other hosts reach this process, and listens there if needed. `mine`
   has its `simulates` already. See join_offer_address. */
tutti_status member_offer_address(const char *store_host, struct member *mine);
/* Checks that other hosts can reach the address of each rank of a linked group. INVALID_ARGUMENT, on every rank: one
   offers no such address. */
tutti_status members_check_addresses(const struct group *group);
enum { MEMBER_TEXT_BYTES = 192 };
/* Prints a rank and its process for errors, as in "rank 3 (process 17 on node2, 10.0.0.2:4711)". Returns `out`. */
const char *member_print(const struct group *group, int rank, char out[MEMBER_TEXT_BYTES]);
/* Links the first process of this host with those of the hosts 1, 2, 4 … ahead. The first rank of each host calls it,
   and checks for failures while it waits. So every host has O(log hosts) links each way, and all hosts learn of one
   that is gone. Further links are made when they are needed. */
tutti_status hosts_connect_links(tutti_comm *comm, int64_t deadline_ms);
