/* Keys of a store, and the records that are written and read there. */
#include "backend/join/records.h"
#include "backend/base/status.h"
#include "backend/join/join_result.h"
#include <stdio.h>
#include <string.h>

const char store_first_key[] = "r0";

void store_key_of_attempt(const struct member *first, const char *name, char out[STORE_KEY_BYTES])
{
    char token[2 * sizeof first->token + 1];
    for (size_t i = 0; i < sizeof first->token; i++) snprintf(&token[2 * i], 3, "%02x", first->token[i]);
    snprintf(out, STORE_KEY_BYTES, "%s/%s", token, name);
}
void store_key_of_rank(const struct member *first, const char *name, int rank, char out[STORE_KEY_BYTES])
{
    char numbered[16];
    snprintf(numbered, sizeof numbered, "%s%d", name, rank);
    store_key_of_attempt(first, numbered, out);
}
void store_key_of_record(const struct member *first, int rank, char out[STORE_KEY_BYTES])
{
    store_key_of_rank(first, "r", rank, out);
}
void store_key_of_other(const struct member *first, char out[STORE_KEY_BYTES])
{
    store_key_of_attempt(first, "other", out);
}
tutti_status store_put_value(const tutti_store *store, const char *key, const void *value, size_t bytes)
{
    tutti_status status = store->put(store->context, key, value, bytes);
    if (status == TUTTI_OK) return status;
    return status_fail(status, "the key-value store failed to store key %s: %s", key, status_message(status));
}
tutti_status store_get_value(const tutti_store *store, const char *key, int64_t timeout_ms, size_t capacity, void *out,
    size_t *bytes)
{
    tutti_status status = store->get(store->context, key, out, capacity, bytes, timeout_ms);
    if (status == TUTTI_OK || status == TUTTI_TIMEOUT || status == TUTTI_NO_MEMORY) return status;
    return status_fail(status, "the key-value store failed to return key %s: %s", key, status_message(status));
}
/* Reads a value that must have exactly that many bytes. */
static tutti_status store_get_exact_value(const tutti_store *store, const char *key, int rank, int64_t timeout_ms,
    void *out, size_t bytes)
{
    size_t found = 0;
    tutti_status status = store_get_value(store, key, timeout_ms, bytes, out, &found);
    if (status == TUTTI_NO_MEMORY || (status == TUTTI_OK && found != bytes))
        return status_fail(TUTTI_MISMATCH, "rank %d runs another version of tutti", rank);
    return status;
}

/* ---- the table of members ---- */
/* Returns the number of records in each piece but the last. */
static uint32_t store_pieces_step(const struct store_pieces *pieces)
{
    return (uint32_t)(pieces->piece_bytes / sizeof(struct member));
}
/* Writes the key of the piece that begins with record `at`, and returns the bytes of the piece. */
static size_t store_pieces_find(const struct store_pieces *pieces, const struct member *first, uint32_t at,
    char key[STORE_KEY_BYTES])
{
    uint32_t step = store_pieces_step(pieces), left = pieces->size - at;
    store_key_of_rank(first, "members", (int)(at / step), key);
    return (left < step ? left : step) * sizeof(struct member);
}
tutti_status store_put_table(const tutti_store *store, const struct member *first, const struct store_pieces *pieces,
    const struct member *members, uint32_t *stored)
{
    char key[STORE_KEY_BYTES];
    for (*stored = 0; *stored < pieces->size;) {
        size_t bytes = store_pieces_find(pieces, first, *stored, key);
        TRY(store_put_value(store, key, &members[*stored], bytes));
        *stored += (uint32_t)(bytes / sizeof *members);
    }
    return TUTTI_OK;
}
tutti_status store_get_table(const tutti_store *store, const struct member *first, const struct store_pieces *pieces,
    struct member *out)
{
    char key[STORE_KEY_BYTES];
    for (uint32_t at = 0; at < pieces->size; at += store_pieces_step(pieces)) {
        size_t bytes = store_pieces_find(pieces, first, at, key);
        TRY(store_get_exact_value(store, key, 0, NOW, &out[at], bytes));
    }
    return TUTTI_OK;
}
void store_remove_table(const tutti_config *config, const struct member *first, const struct store_pieces *pieces)
{
    char key[STORE_KEY_BYTES];
    const tutti_store *store = &config->store;
    for (uint32_t at = 0; at < pieces->size; at += store_pieces_step(pieces)) {
        store_pieces_find(pieces, first, at, key);
        if (config->store_remove && config->store_remove(store->context, key) == TUTTI_OK) continue;
        /* If the store refuses, too, the piece stays. */
        store->put(store->context, key, "", 1);
    }
}

/* ---- records ---- */
tutti_status store_get_record(const tutti_store *store, const char *key, int rank, int64_t timeout_ms,
    struct member *out)
{
    struct member found;
    tutti_status status = store_get_exact_value(store, key, rank, timeout_ms, &found, sizeof found);
    if (status == TUTTI_OK) member_copy_record(out, &found);
    return status;
}
tutti_status store_get_statement(const tutti_store *store, const char *key, int64_t timeout_ms, struct statement *out)
{
    struct statement found;
    tutti_status status = store_get_exact_value(store, key, 0, timeout_ms, &found, sizeof found);
    if (status != TUTTI_OK) return status;
    member_copy_record(&out->member, &found.member);
    out->terms = found.terms;
    terms_make_printable(&out->terms);
    return status;
}
tutti_status store_put_other_statement(const tutti_store *store, const struct member *first,
    const struct statement *mine)
{
    char key[STORE_KEY_BYTES];
    store_key_of_other(first, key);
    return store_put_value(store, key, mine, sizeof *mine);
}
void store_key_of_alone(int rank_of_job, char out[STORE_KEY_BYTES])
{
    snprintf(out, STORE_KEY_BYTES, "alone%d", rank_of_job);
}
tutti_status store_check_alone(const tutti_config *config, const struct statement *own, int rank)
{
    char key[STORE_KEY_BYTES];
    struct statement alone;
    if (!config->members) return TUTTI_OK;
    store_key_of_alone(config->members[rank], key);
    tutti_status status = store_get_statement(&config->store, key, NOW, &alone);
    if (status == TUTTI_TIMEOUT) return TUTTI_OK;
    TRY(status);
    return member_shares_job(&alone.member, &own->member) ? terms_fail_mismatch(&alone, own) : TUTTI_OK;
}
void store_remove_value(const tutti_config *config, const char *key)
{
    if (config->store_remove) config->store_remove(config->store.context, key);
}
