/* The keys of the groups that this process has joined, and the keys of pairs of processes that follow from them.
 *
 * Rank 0 of a group draws the group's key and distributes it through the store. If TUTTI_SECRET_FILE gives a secret,
 * the key in use follows from both. A process adds the key before the store shows that it has come, so its key is known
 * before any other process connects. Messages name a key by its id, which grants no access. Any thread may call these
 * functions with any lock held. */
#pragma once
#include "backend/base/sha256.h"
#include "include/tutti.h"

enum { KEY_BYTES = SHA256_BYTES, KEY_ID_BYTES = 16, PROOF_BYTES = SHA256_BYTES };
/* The id of a group's key, which grants no access, and the key of two processes. */
struct key_id { unsigned char bytes[KEY_ID_BYTES]; };
struct pair_key { unsigned char bytes[KEY_BYTES]; };

/* Adds a key unless it is known, and returns its id. SYSTEM: the secret's file cannot be read (secret.h). */
tutti_status group_key_add(const unsigned char key[KEY_BYTES], struct key_id *out);
/* Derives the key of two processes from their nonces, in either order. Returns false if the id is unknown. */
bool pair_key_derive(const struct key_id *id, const unsigned char a[16], const unsigned char b[16],
    struct pair_key *out);
/* Derives a value from a group's key, a purpose and a text, which only processes with that key can compute. The purpose
   has at most 15 characters. Returns false if the id is unknown, or if the text is too long. */
bool group_key_derive(const struct key_id *id, const char *purpose, const void *text, size_t bytes,
    unsigned char out[KEY_BYTES]);
/* Forgets all keys and the secret. */
void group_keys_forget(void);
/* Forgets the parent's keys and secret in the child. */
void group_keys_after_fork(void);

/* Computes the HMAC of a text with the key of two processes, by which one proves to the other that it has the key. */
void proof_make(const struct pair_key *key, const void *text, size_t bytes, unsigned char out[PROOF_BYTES]);
/* Returns true if the proof is right for the text. */
bool proof_check(const struct pair_key *key, const void *text, size_t bytes, const unsigned char proof[PROOF_BYTES]);
