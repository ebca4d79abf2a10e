/* A ring keeps the latest MOST_KEYS keys. A process needs the key of a group while the group forms. Later it needs the
 * key only for new connections of that group: a link, or an endpoint of a network. */
#include "backend/processes/keys.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/processes/secret.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_KEYS = 4096, PURPOSE_BYTES = 16, MOST_DERIVED_BYTES = 128 };
struct group_key { struct key_id id; unsigned char bytes[KEY_BYTES]; };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    struct group_key *ring; /* [room] */
    /* `added` counts all keys ever added. */
    size_t room, added;
} keys; /* under lock */

/* ---- the ring ---- */
/* Returns the key with that id, or NULL if the id is unknown. The caller holds the lock. */
static const struct group_key *group_key_find(const struct key_id *id)
{
    size_t count = keys.added < keys.room ? keys.added : keys.room;
    for (size_t i = 0; i < count; i++)
        if (memcmp(&keys.ring[i].id, id, sizeof *id) == 0) return &keys.ring[i];
    return NULL;
}
/* Doubles the ring, and erases the old one. Returns false if memory is short. The caller holds the lock. */
static bool key_ring_grow(void)
{
    size_t room = keys.room ? 2 * keys.room : 16;
    struct group_key *ring = memory_alloc_zeroed(room, sizeof *ring);
    if (!ring) return false;
    if (keys.room) memcpy(ring, keys.ring, keys.room * sizeof *ring);
    if (keys.room) explicit_bzero(keys.ring, keys.room * sizeof *ring);
    free(keys.ring);
    keys.ring = ring;
    keys.room = room;
    return true;
}
tutti_status group_key_add(const unsigned char key[KEY_BYTES], struct key_id *out)
{
    static const char label[PURPOSE_BYTES] = "tutti key id";
    unsigned char name[SHA256_BYTES];
    TRY(secret_load());
    hmac_sha256(key, KEY_BYTES, label, sizeof label, name);
    memcpy(out, name, sizeof *out);
    pthread_mutex_lock(&lock);
    bool is_known = group_key_find(out),
         has_room = is_known || keys.added < keys.room || keys.room == MOST_KEYS || key_ring_grow();
    if (!is_known && has_room) {
        struct group_key *added = &keys.ring[keys.added++ % keys.room];
        added->id = *out;
        secret_mix(key, added->bytes);
    }
    pthread_mutex_unlock(&lock);
    return has_room ? TUTTI_OK : status_fail(TUTTI_NO_MEMORY, "no memory for the key of a group");
}
void group_keys_forget(void)
{
    pthread_mutex_lock(&lock);
    if (keys.ring) explicit_bzero(keys.ring, keys.room * sizeof *keys.ring);
    free(keys.ring);
    memset(&keys, 0, sizeof keys);
    pthread_mutex_unlock(&lock);
    secret_forget();
}
/* Another thread of the parent may have held the lock or been growing the ring, so the child does not free the ring. */
void group_keys_after_fork(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    memset(&keys, 0, sizeof keys);
    secret_after_fork();
}

/* ---- derived keys and proofs ---- */
bool group_key_derive(const struct key_id *id, const char *purpose, const void *text, size_t bytes,
    unsigned char out[KEY_BYTES])
{
    struct {
        char purpose[PURPOSE_BYTES];
        unsigned char text[MOST_DERIVED_BYTES];
    } whole = { .purpose = "" };
    pthread_mutex_lock(&lock);
    const struct group_key *key = bytes <= sizeof whole.text ? group_key_find(id) : NULL;
    if (key) {
        strncpy(whole.purpose, purpose, sizeof whole.purpose - 1);
        memcpy(whole.text, text, bytes);
        hmac_sha256(key->bytes, sizeof key->bytes, &whole, sizeof whole.purpose + bytes, out);
    }
    pthread_mutex_unlock(&lock);
    return key;
}
bool pair_key_derive(const struct key_id *id, const unsigned char a[16], const unsigned char b[16],
    struct pair_key *out)
{
    unsigned char nonces[2][16];
    bool a_is_first = memcmp(a, b, 16) < 0;
    memcpy(nonces[0], a_is_first ? a : b, 16);
    memcpy(nonces[1], a_is_first ? b : a, 16);
    return group_key_derive(id, "tutti pair", nonces, sizeof nonces, out->bytes);
}
void proof_make(const struct pair_key *key, const void *text, size_t bytes, unsigned char out[PROOF_BYTES])
{
    hmac_sha256(key->bytes, sizeof key->bytes, text, bytes, out);
}
bool proof_check(const struct pair_key *key, const void *text, size_t bytes, const unsigned char proof[PROOF_BYTES])
{
    unsigned char expected[PROOF_BYTES];
    proof_make(key, text, bytes, expected);
    return secret_bytes_equal(expected, proof, sizeof expected);
}
