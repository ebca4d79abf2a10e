/* Which ranks are on which hosts: those of one host have shown it to each other (processes/claims.h). A setting
 * simulates that the ranks of one host are on several, so that everything between hosts runs in ordinary tests. */
#pragma once
#include "backend/engine/group.h"

/* The host of each of the job's ranks as TUTTI_HOSTS says: "2" (blocks, the first ones larger if it does not divide),
   or "0,1,0,1" (one number below `size` for each rank). Empty: all 0. INVALID_ARGUMENT: it does not fit the number of
   ranks. */
tutti_status hosts_parse(const char *text, int size, int *out);
/* A number for what a setting says about so many ranks; equal on ranks that pretend alike; 0: the setting is empty. */
uint32_t hosts_number(const char *text, int size);
/* From what the members say. INVALID_ARGUMENT: hosts are simulated, and there are several. */
tutti_status hosts_layout(const struct group *group, struct layout **out);
