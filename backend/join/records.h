/* Keys and records in the store while the ranks of a group meet there. Another process has written each record that is
 * read here: the length is checked, and texts are made printable. */
#pragma once
#include "backend/join/terms.h"

enum {
    STORE_KEY_BYTES = 64,
    NOW = 0 /* stores complain on stderr of waits that end without a key */
};
/* Keys of the attempt that `first`, rank 0's record, began: "<token>/table", "<token>/why3", "<token>/r3". */
void name_key(const struct member *first, const char *what, char out[STORE_KEY_BYTES]);
void name_of_rank(const struct member *first, const char *what, int rank, char out[STORE_KEY_BYTES]);
void name_record(const struct member *first, int rank, char out[STORE_KEY_BYTES]);
/* The key under which a rank that was told otherwise puts its words: "<token>/other". */
void name_other(const struct member *first, char out[STORE_KEY_BYTES]);
/* The key of a group of one rank: "alone12". */
void name_alone(int rank_of_job, char out[STORE_KEY_BYTES]);

tutti_status value_put(const tutti_store *store, const char *key, const void *value, size_t bytes);
/* TIMEOUT: there is no such key; NO_MEMORY: the value is larger. Other errors are described in the last error. */
tutti_status value_get(const tutti_store *store, const char *key, int64_t timeout_ms, size_t capacity, void *out,
    size_t *bytes);
void value_remove(const tutti_config *config, const char *key); /* what cannot be removed stays */

/* TIMEOUT; MISMATCH: what is there is of another version. */
tutti_status record_get(const tutti_store *store, const char *key, int rank, int64_t timeout_ms, struct member *out);
tutti_status statement_get(const tutti_store *store, const char *key, int64_t timeout_ms, struct statement *out);
/* Rank 0 of that attempt is to see what this process was told. */
tutti_status statement_put_other(const tutti_store *store, const struct member *first, const struct statement *mine);
static inline bool terms_differ(const struct statement *a, const struct statement *b)
{
    return a->terms.digest != b->terms.digest;
}
