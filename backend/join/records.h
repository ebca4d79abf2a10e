/* Keys and records in the store while the ranks of a group join through it. Other processes wrote the records that are
 * read here, so the length is checked and texts are made printable. */
#pragma once
#include "backend/join/terms.h"

enum {
    STORE_KEY_BYTES = 64,
    /* A read with this timeout does not wait. Stores log waits that end without a key to stderr. */
    NOW = 0
};
/* Keys of an attempt that begins with rank 0's record `first`: "<token>/table", "<token>/why3", "<token>/r3". */
void store_key_of_attempt(const struct member *first, const char *what, char out[STORE_KEY_BYTES]);
void store_key_of_rank(const struct member *first, const char *what, int rank, char out[STORE_KEY_BYTES]);
void store_key_of_record(const struct member *first, int rank, char out[STORE_KEY_BYTES]);
/* The key for the terms of a rank that was given other terms: "<token>/other". */
void store_key_of_other(const struct member *first, char out[STORE_KEY_BYTES]);
/* The key of a group of one rank: "alone12". */
void store_key_of_alone(int rank_of_job, char out[STORE_KEY_BYTES]);

tutti_status store_put_value(const tutti_store *store, const char *key, const void *value, size_t bytes);
/* TIMEOUT: the key does not exist. NO_MEMORY: the value is larger than `capacity`. Other errors set the last error. */
tutti_status store_get_value(const tutti_store *store, const char *key, int64_t timeout_ms, size_t capacity, void *out,
    size_t *bytes);
/* A store without a remove function keeps the key. */
void store_remove_value(const tutti_config *config, const char *key);

/* TIMEOUT: the key does not exist. MISMATCH: the record is of another version. */
tutti_status store_get_record(const tutti_store *store, const char *key, int rank, int64_t timeout_ms,
    struct member *out);
tutti_status store_get_statement(const tutti_store *store, const char *key, int64_t timeout_ms, struct statement *out);
/* Shows this process's terms to rank 0 of that attempt. */
tutti_status store_put_other_statement(const tutti_store *store, const struct member *first,
    const struct statement *mine);
static inline bool terms_differ(const struct statement *a, const struct statement *b)
{
    return a->terms.digest != b->terms.digest;
}
