/* The keys of the groups that this process has joined, and the keys of two processes that follow from them.
 *
 * Rank 0 of a group draws the group's key and hands it out through the store; where TUTTI_SECRET_FILE gives a
 * secret, the key that counts follows from both. A process adds the key before others can learn from the store that
 * it has come, so a process that may call it finds its key known. On the wire a key is named by its id, which opens
 * nothing. Functions here may be called by any thread, with any lock held. */
#pragma once
#include "backend/base/sha256.h"
#include "include/tutti.h"

enum { KEY_BYTES = SHA256_BYTES, KEY_ID_BYTES = 16, PROOF_BYTES = SHA256_BYTES };
struct key_id { unsigned char bytes[KEY_ID_BYTES]; };
struct pair_key { unsigned char bytes[KEY_BYTES]; };

/* The id of a key. A key that is known already stays once. SYSTEM: the secret's file cannot be read (secret.h). */
tutti_status key_add(const unsigned char key[KEY_BYTES], struct key_id *out);
/* The key of two processes, by their nonces in either order. false: no key has that id here. */
bool key_of_pair(const struct key_id *id, const unsigned char a[16], const unsigned char b[16], struct pair_key *out);
/* A value that only processes with that key can compute, for one purpose (at most 15 characters). false: as above. */
bool key_derive(const struct key_id *id, const char *purpose, const void *text, size_t bytes,
    unsigned char out[KEY_BYTES]);
void keys_forget(void);                                 /* all of them, and the secret */
void keys_after_fork(void);                             /* in the child: the same */

void proof_make(const struct pair_key *key, const void *text, size_t bytes, unsigned char out[PROOF_BYTES]);
bool proof_check(const struct pair_key *key, const void *text, size_t bytes, const unsigned char proof[PROOF_BYTES]);
