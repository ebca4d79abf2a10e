/* How the ranks of a new group learn of each other: every rank brings one member record, every rank gets the table
 * of all. Three ways: a key-value store (one key written per rank, three read, one removed; rank 0 collects and
 * publishes the table, so the store sees O(p) requests; what earlier groups left there is not believed), a unique id
 * (rank 0 listens on a socket named by it), or an existing communicator (backend/comm/split.c). */
#pragma once
#include "backend/join/terms.h"

/* Both check that sizes and builds agree, and through a store the terms (MISMATCH shows both sides), and that a rank
   that does not come is named (TIMEOUT: "rank 3 of 8 has not joined group … within … ms"), on every rank that waits:
   rank 0 decides and its result goes to all. Through a store a rank that cannot join (mine->status, and why in its
   last error) says so: it gets that error again, and the others get it in its words. Through a store the ranks are
   put on hosts (host_token): by claims if they offer contacts, else all on one; by a unique id they are on one, and
   the caller has said so. `table` has room for mine->size records, and holds something only when all is well; then
   *key is the id of the key by which the group's processes know each other. Through a store rank 0 draws that key,
   and whoever reads the store learns it; by a unique id it follows from that. */
tutti_status bootstrap_store(const tutti_config *config, const struct member *mine, const struct terms *terms,
    int64_t deadline_ms, struct member *table, struct key_id *key);
/* Publishes that config->members[0] is a rank of the job that forms a group alone, for ranks that may wait for it. */
tutti_status bootstrap_alone(const tutti_config *config, const struct member *mine, const struct terms *terms);
/* By rank 0 when all have joined, which they do with the table in hand: the store keeps its first bytes only. */
void bootstrap_shorten(const tutti_config *config, const struct member *mine);
/* Derives the name of rank 0's socket (its first 16 bytes) and the key from a unique id. */
void id_derive(const tutti_unique_id *id, unsigned char name[SHA256_BYTES], unsigned char key[KEY_BYTES]);
tutti_status bootstrap_id(const tutti_unique_id *id, int rank, const struct member *mine, int64_t deadline_ms,
    struct member *table, struct key_id *key);
