/* Follows the two standards step by step, in plain C. Buffers that depend on a key are overwritten after their use. */
#include "backend/base/sha256.h"
#include <string.h>

static const uint32_t round_constants[64] = { 0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1,
    0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7,
    0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c,
    0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2 };

static uint32_t rotate_right(uint32_t x, int by) { return x >> by | x << (32 - by); }
static uint32_t load_big_endian(const unsigned char *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}
static void store_big_endian(uint32_t x, unsigned char *out)
{
    for (int i = 0; i < 4; i++) out[i] = (unsigned char)(x >> (24 - 8 * i));
}
/* Expands a block of 64 bytes to the 64 words of the message schedule (FIPS 180-4). */
static void sha256_fill_schedule(uint32_t w[64], const unsigned char *block)
{
    for (int i = 0; i < 16; i++) w[i] = load_big_endian(block + 4 * i);
    for (int i = 16; i < 64; i++) {
        uint32_t s0 = rotate_right(w[i - 15], 7) ^ rotate_right(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t s1 = rotate_right(w[i - 2], 17) ^ rotate_right(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
}
/* Updates the state by a block of 64 bytes. The working variables a to h of the standard are v[0] to v[7]. */
static void sha256_compress_block(uint32_t state[8], const unsigned char *block)
{
    uint32_t w[64], v[8];
    sha256_fill_schedule(w, block);
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t s1 = rotate_right(v[4], 6) ^ rotate_right(v[4], 11) ^ rotate_right(v[4], 25);
        uint32_t s0 = rotate_right(v[0], 2) ^ rotate_right(v[0], 13) ^ rotate_right(v[0], 22);
        uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]), majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        uint32_t first = v[7] + s1 + choice + round_constants[i] + w[i];
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += first;
        v[0] = first + s0 + majority;
    }
    for (int i = 0; i < 8; i++) state[i] += v[i];
}
void sha256_init(struct sha256 *hash)
{
    *hash = (struct sha256){ .state = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                                 0x1f83d9ab, 0x5be0cd19 } };
}
void sha256_add(struct sha256 *hash, const void *text, size_t bytes)
{
    const unsigned char *at = text;
    while (bytes) {
        size_t used = hash->bytes % SHA256_BLOCK_BYTES, room = SHA256_BLOCK_BYTES - used;
        size_t n = bytes < room ? bytes : room;
        memcpy(hash->block + used, at, n);
        hash->bytes += n;
        at += n;
        bytes -= n;
        if (n == room) sha256_compress_block(hash->state, hash->block);
    }
}
/* The padding is a one bit, zeros, and the number of bits as 64 bits. */
void sha256_finish(struct sha256 *hash, unsigned char out[SHA256_BYTES])
{
    static const unsigned char padding[SHA256_BLOCK_BYTES] = { 0x80 };
    unsigned char length[8];
    uint64_t bits = hash->bytes * 8;
    store_big_endian((uint32_t)(bits >> 32), length);
    store_big_endian((uint32_t)bits, length + 4);
    size_t used = hash->bytes % SHA256_BLOCK_BYTES;
    sha256_add(hash, padding, used < 56 ? 56 - used : 120 - used);
    sha256_add(hash, length, sizeof length);
    for (int i = 0; i < 8; i++) store_big_endian(hash->state[i], out + 4 * i);
    explicit_bzero(hash, sizeof *hash);
}

/* Hashes a key block, each byte XORed with `pad`, and then a text: one of the two hashes of HMAC (RFC 2104). */
static void hmac_hash_padded(const unsigned char key[SHA256_BLOCK_BYTES], unsigned char pad, const void *text,
    size_t bytes, unsigned char out[SHA256_BYTES])
{
    unsigned char padded[SHA256_BLOCK_BYTES];
    struct sha256 hash;
    for (int i = 0; i < SHA256_BLOCK_BYTES; i++) padded[i] = key[i] ^ pad;
    sha256_init(&hash);
    sha256_add(&hash, padded, sizeof padded);
    sha256_add(&hash, text, bytes);
    sha256_finish(&hash, out);
    explicit_bzero(padded, sizeof padded);
}
void hmac_sha256(const void *key, size_t key_bytes, const void *text, size_t bytes, unsigned char out[SHA256_BYTES])
{
    unsigned char block[SHA256_BLOCK_BYTES] = { 0 }, inner[SHA256_BYTES];
    struct sha256 hash;
    if (key_bytes > sizeof block) {
        sha256_init(&hash);
        sha256_add(&hash, key, key_bytes);
        sha256_finish(&hash, block);
    } else if (key_bytes) memcpy(block, key, key_bytes);
    hmac_hash_padded(block, 0x36, text, bytes, inner);
    hmac_hash_padded(block, 0x5c, inner, sizeof inner, out);
    explicit_bzero(block, sizeof block);
}
bool secret_bytes_equal(const void *a, const void *b, size_t bytes)
{
    const unsigned char *x = a, *y = b;
    unsigned char differs = 0;
    for (size_t i = 0; i < bytes; i++) differs |= (unsigned char)(x[i] ^ y[i]);
    return !differs;
}
