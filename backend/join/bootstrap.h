/* How the ranks of a new group find each other. Every rank brings one member record and gets the table of all. There
 * are three ways. A key-value store: a rank other than 0 usually writes one key, reads three times and removes one key.
 * Rank 0 collects the records and publishes the table, so the store serves O(p) requests. Records of earlier groups in
 * the store are not trusted. A unique id: rank 0 listens on a socket that the id names. An existing communicator:
 * backend/comm/split.c. */
#pragma once
#include "backend/join/terms.h"
#include "backend/memory/shared_table.h"

/* bootstrap_store and bootstrap_id both check that sizes and builds agree; a store also compares the terms (MISMATCH
   shows both sides). Rank 0 decides, and every rank that waits gets its result. A missing rank is named (TIMEOUT: "rank
   3 of 8 has not joined group … within … ms"). A rank that cannot join (mine->status, and the reason in its last error)
   reports that through the store. It gets its error back, and the others get it in its words. bootstrap_store also sets
   each host_token: by a host election if the ranks offer contacts, else to one token for all. With a unique id all are
   on one host. OK: *table has the records of all members, and the caller leaves it; *key is the id of the group's
   key. Rank 0 draws that key and publishes it in the store, so any reader of the store learns it. With a unique id the
   key follows from the id. */
tutti_status bootstrap_store(const tutti_config *config, const struct member *mine, const struct terms *terms,
    int64_t deadline_ms, struct shared_table **table, struct key_id *key);
/* Publishes that config->members[0] is a rank of the job that forms a group alone, for ranks that may wait for it. */
tutti_status bootstrap_publish_alone(const tutti_config *config, const struct member *mine, const struct terms *terms);
/* Shortens the result in the store to its first bytes, and removes the table of members. Rank 0 calls it when all ranks
   have joined, because by then they all have the table. */
void bootstrap_shorten_result(const tutti_config *config, const struct member *mine);
/* Removes the table of members, and replaces the result in the store by an error with the text of this thread's last
   error. Rank 0 calls it when the group has formed but rank 0 cannot join. A rank that has not read the table gets that
   error. Fails with `status` and the same last error. */
tutti_status bootstrap_withdraw_result(const tutti_config *config, const struct member *mine, tutti_status status);
/* Derives the name of rank 0's socket (its first 16 bytes) and the key from a unique id. */
void unique_id_derive(const tutti_unique_id *id, unsigned char name[SHA256_BYTES], unsigned char key[KEY_BYTES]);
/* Joins by a unique id: sets *table and *key as bootstrap_store does. */
tutti_status bootstrap_id(const tutti_unique_id *id, int rank, const struct member *mine, int64_t deadline_ms,
    struct shared_table **table, struct key_id *key);
