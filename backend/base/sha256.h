/* SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104), by which processes prove to each other that they belong to one job.
 * They are built in because every connection needs them: docs/decisions/proofs-between-processes.md. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32, SHA256_BLOCK_BYTES = 64 };
struct sha256 {
    uint32_t state[8];
    /* `bytes` counts all input, including the bytes that wait in `block`. */
    uint64_t bytes;
    unsigned char block[SHA256_BLOCK_BYTES];
};
void sha256_init(struct sha256 *hash);
/* Appends `bytes` bytes to the text that is hashed. */
void sha256_add(struct sha256 *hash, const void *text, size_t bytes);
/* Writes the hash of all bytes added so far, and erases the state. */
void sha256_finish(struct sha256 *hash, unsigned char out[SHA256_BYTES]);

/* Computes the HMAC of a text; the key may have any length, also 0. */
void hmac_sha256(const void *key, size_t key_bytes, const void *text, size_t bytes, unsigned char out[SHA256_BYTES]);
/* Returns true if two secrets are equal. The time it takes does not depend on where they differ. */
bool secret_bytes_equal(const void *a, const void *b, size_t bytes);
