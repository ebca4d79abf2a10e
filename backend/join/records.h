/* Keys and records in the store while the ranks of a group join through it. Other processes wrote the records that are
 * read here, so the length is checked and texts are made printable. */
#pragma once
#include "backend/join/terms.h"

enum {
    STORE_KEY_BYTES = 64,
    /* The most bytes of a value in the store. */
    STORE_PIECE_BYTES = 4 << 20,
    /* A read with this timeout does not wait. A store may log a longer read that finds no key. */
    NOW = 0
};
/* These write the key of a value in the attempt that begins with rank 0's record `first`: "<token>/table" for the name
   "table", "<token>/why3" for the name "why" and rank 3, and "<token>/r3" for the record of rank 3. */
void store_key_of_attempt(const struct member *first, const char *name, char out[STORE_KEY_BYTES]);
void store_key_of_rank(const struct member *first, const char *name, int rank, char out[STORE_KEY_BYTES]);
void store_key_of_record(const struct member *first, int rank, char out[STORE_KEY_BYTES]);
/* Writes the key for the terms of a rank that was given other terms: "<token>/other". */
void store_key_of_other(const struct member *first, char out[STORE_KEY_BYTES]);
/* Writes the key of a group of one rank, which is rank 12 of the job: "alone12". */
void store_key_of_alone(int rank_of_job, char out[STORE_KEY_BYTES]);

/* The key of rank 0's record, which begins an attempt. */
extern const char store_first_key[];
/* Returns true if the records of two ranks 0 begin the same attempt. */
static inline bool member_is_same_attempt(const struct member *a, const struct member *b)
{
    return memcmp(a->token, b->token, sizeof a->token) == 0;
}

/* Stores a value under a key, or fails with the error of the store. */
tutti_status store_put_value(const tutti_store *store, const char *key, const void *value, size_t bytes);
/* Reads a value of at most `capacity` bytes, and sets *bytes to its length. TIMEOUT: the key does not exist. NO_MEMORY:
   the value is larger than `capacity`. Only other errors set the last error. */
tutti_status store_get_value(const tutti_store *store, const char *key, int64_t timeout_ms, size_t capacity, void *out,
    size_t *bytes);
/* Removes a key. A store without a remove function keeps it. */
void store_remove_value(const tutti_config *config, const char *key);

/* The number of members in a table, and the most bytes that one value of the store may have. */
struct store_pieces { uint32_t size; size_t piece_bytes; };
/* These three store, read and remove the table of members of the attempt that begins with rank 0's record `first`. Each
   piece is the value of a key: "<token>/members0", "<token>/members1" and so on. Reading makes no text printable.
   TIMEOUT of store_get_table: a piece does not exist. MISMATCH: a piece has another length. Pieces that the store
   cannot remove are shortened to a byte. *stored is the number of records that are in the store. */
tutti_status store_put_table(const tutti_store *store, const struct member *first, const struct store_pieces *pieces,
    const struct member *members, uint32_t *stored);
tutti_status store_get_table(const tutti_store *store, const struct member *first, const struct store_pieces *pieces,
    struct member *out);
void store_remove_table(const tutti_config *config, const struct member *first, const struct store_pieces *pieces);

/* The next two read a record, or a statement, of another process, and make its texts printable. TIMEOUT: the key does
   not exist. MISMATCH: the record is of another version. */
tutti_status store_get_record(const tutti_store *store, const char *key, int rank, int64_t timeout_ms,
    struct member *out);
tutti_status store_get_statement(const tutti_store *store, const char *key, int64_t timeout_ms, struct statement *out);
/* Publishes this process's terms, which differ, for rank 0 of the attempt of `first`. */
tutti_status store_put_other_statement(const tutti_store *store, const struct member *first,
    const struct statement *mine);
/* Fails with MISMATCH if that rank has formed a group alone, in the same job, so that it will not come. */
tutti_status store_check_alone(const tutti_config *config, const struct statement *own, int rank);
/* Returns true if two ranks were given different terms. */
static inline bool terms_differ(const struct statement *a, const struct statement *b)
{
    return a->terms.digest != b->terms.digest;
}
