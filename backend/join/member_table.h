/* The table of a group's members, once for all ranks of this process, and if possible once for all processes of its
 * host (host_table.h). A process finds its table by the token of the group. */
#pragma once
#include "backend/join/host_table.h"
#include "backend/join/terms.h"

/* Makes `members`, which it then owns, the table of the group whose rank 0 has the token members[0].token. If another
   rank of this process has made it, the table of that rank is used. Pair with shared_table_leave. NO_MEMORY. */
tutti_status member_table_keep(struct member *members, struct shared_table **out);
/* Does the same for a table of `size` members that has arrived as the file of that descriptor, which this closes.
   `token` is the one of its rank 0. Without the descriptor (-1) another rank of this process must have the table. */
tutti_status member_table_keep_file(const unsigned char token[16], uint32_t size, int descriptor,
    struct shared_table **out);

/* For a group that has formed through a store. */
struct member_table_request {
    struct host_table host;
    const tutti_store *store;
};
/* Makes the request of a rank whose config this is. The records and the key must stay valid. */
struct member_table_request member_table_request_make(const tutti_config *config, const struct member *first,
    const struct member *mine, const struct key_id *key, int64_t deadline_ms);
/* Rank 0: does member_table_keep, and sets *descriptor for host_table_send, which the caller calls when the result
   is in the store. Without a store request->store is NULL, and the caller sends and closes the descriptor. */
tutti_status member_table_create(const struct member_table_request *request, struct member *members,
    struct shared_table **out, int *descriptor);
/* The other ranks: gets the table from a rank of this process, from another process of this host, or from the store,
   and then sends it to the other processes of this host if that is this process's part. ABORTED: the caller has
   cancelled the join. SYSTEM: the store has lost the table. */
tutti_status member_table_get(const struct member_table_request *request, struct shared_table **out);
