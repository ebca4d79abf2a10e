/* Keys of a store, and the records that are written and read there. */
#include "backend/join/records.h"
#include "backend/base/status.h"
#include "backend/join/join_result.h"
#include <stdio.h>
#include <string.h>

void name_key(const struct member *first, const char *what, char out[STORE_KEY_BYTES])
{
    char token[2 * sizeof first->token + 1];
    for (size_t i = 0; i < sizeof first->token; i++) snprintf(&token[2 * i], 3, "%02x", first->token[i]);
    snprintf(out, STORE_KEY_BYTES, "%s/%s", token, what);
}
void name_of_rank(const struct member *first, const char *what, int rank, char out[STORE_KEY_BYTES])
{
    char numbered[16];
    snprintf(numbered, sizeof numbered, "%s%d", what, rank);
    name_key(first, numbered, out);
}
void name_record(const struct member *first, int rank, char out[STORE_KEY_BYTES])
{
    name_of_rank(first, "r", rank, out);
}
void name_other(const struct member *first, char out[STORE_KEY_BYTES]) { name_key(first, "other", out); }
tutti_status value_put(const tutti_store *store, const char *key, const void *value, size_t bytes)
{
    tutti_status status = store->put(store->context, key, value, bytes);
    if (status == TUTTI_OK) return status;
    return status_fail(status, "the key-value store failed to store key %s: %s", key, status_message(status));
}
tutti_status value_get(const tutti_store *store, const char *key, int64_t timeout_ms, size_t capacity, void *out,
    size_t *bytes)
{
    tutti_status status = store->get(store->context, key, out, capacity, bytes, timeout_ms);
    if (status == TUTTI_OK || status == TUTTI_TIMEOUT || status == TUTTI_NO_MEMORY) return status;
    return status_fail(status, "the key-value store failed to return key %s: %s", key, status_message(status));
}
/* Reads a value that must have exactly that many bytes. */
static tutti_status exact_get(const tutti_store *store, const char *key, int rank, int64_t timeout_ms, void *out,
    size_t bytes)
{
    size_t found = 0;
    tutti_status status = value_get(store, key, timeout_ms, bytes, out, &found);
    if (status == TUTTI_NO_MEMORY || (status == TUTTI_OK && found != bytes))
        return status_fail(TUTTI_MISMATCH, "rank %d runs another version of tutti", rank);
    return status;
}
tutti_status record_get(const tutti_store *store, const char *key, int rank, int64_t timeout_ms, struct member *out)
{
    struct member found;
    tutti_status status = exact_get(store, key, rank, timeout_ms, &found, sizeof found);
    if (status == TUTTI_OK) member_seat(out, &found);
    return status;
}
tutti_status statement_get(const tutti_store *store, const char *key, int64_t timeout_ms, struct statement *out)
{
    struct statement found;
    tutti_status status = exact_get(store, key, 0, timeout_ms, &found, sizeof found);
    if (status != TUTTI_OK) return status;
    member_seat(&out->member, &found.member);
    out->terms = found.terms;
    terms_clean(&out->terms);
    return status;
}
tutti_status statement_put_other(const tutti_store *store, const struct member *first, const struct statement *mine)
{
    char key[STORE_KEY_BYTES];
    name_other(first, key);
    return value_put(store, key, mine, sizeof *mine);
}
void name_alone(int rank_of_job, char out[STORE_KEY_BYTES]) { snprintf(out, STORE_KEY_BYTES, "alone%d", rank_of_job); }
void value_remove(const tutti_config *config, const char *key)
{
    if (config->store_remove) config->store_remove(config->store.context, key);
}
