/* What lies in the store while a group meets there: the keys, and the records as each process reads and writes them.
 * Everything that is read was written by another process: its length is checked, and its texts are made printable. */
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
/* Of the words of a rank that was told otherwise: "<token>/other". */
void name_other(const struct member *first, char out[STORE_KEY_BYTES]);
/* Of a group of one: "alone12". */
void name_alone(int rank_of_job, char out[STORE_KEY_BYTES]);

tutti_status value_put(const tutti_store *store, const char *key, const void *value, size_t bytes);
/* TIMEOUT: it is not there; NO_MEMORY: it is larger. What else goes wrong is said. */
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
