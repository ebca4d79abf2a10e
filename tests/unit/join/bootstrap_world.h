/* Ranks that join a group, for tests of the bootstrap: threads that share a store in memory, or processes that have a
   unique id. Their identities are invented. */
#pragma once
#include "backend/base/status.h"
#include "backend/join/bootstrap.h"
#include <pthread.h>

/* MOST: the largest group. SHORT_MS suffices to join on a busy machine. */
enum { MOST = 8, VALUE_BYTES = 8192, JOIN_MS = 60000, SHORT_MS = 1000 };
struct entry { char key[64]; unsigned char value[VALUE_BYTES]; size_t bytes; };
struct store {
    pthread_mutex_t lock;
    struct entry entries[8 * MOST];
    int count, puts, gets;
    /* The error of every put, or OK. */
    tutti_status refusal;
};
/* A group that a test forms. One rank of it may differ from the others: the odd rank. */
struct way {
    /* The size with which rank 0 joins. */
    int size;
    /* The odd rank, or -1, and the size and build with which it joins (0: those of the others). */
    int odd_rank, odd_size, odd_build;
    /* A bit for each rank that does not join. */
    int absent;
    int64_t timeout_ms;
    /* Each attempt has processes with other identities and tokens. */
    int attempt;
    /* The error for which the odd rank cannot join, or OK. */
    tutti_status odd_status;
    /* `has_contacts`: the ranks offer addresses. `odd_contact`: the odd rank does the opposite. */
    bool has_contacts, odd_contact;
    /* is_cancelled of the odd rank, or NULL. */
    bool (*odd_cancels)(void *store);
    /* The terms of all ranks: the list of `size` members, or NULL; the number of the job; the name; and the algorithm
       that the options name, or NULL. */
    const int *members;
    uint64_t job;
    const char *name;
    const struct algorithm *all_reduce;
};
/* The result of joining on one rank. */
struct outcome { tutti_status status; char detail[STATUS_DETAIL_BYTES]; struct member table[MOST]; };
struct rank {
    const struct way *way;
    int rank;
    tutti_store store;
    tutti_unique_id id;
    struct outcome *outcome;
    struct key_id key;
};

void sleep_ms(int ms);
tutti_status store_put(void *context, const char *key, const void *value, size_t bytes);
tutti_status store_get(void *context, const char *key, void *value, size_t capacity, size_t *bytes, int64_t timeout_ms);
tutti_status store_remove(void *context, const char *key);
int store_keys(struct store *s);
struct member member_of(const struct way *way, int rank);
struct statement statement_of(const struct way *way, int rank);
/* Stores the statement of rank 0 of a group, but no result. */
void store_put_first(struct store *s, const struct way *way);
/* Joins as that rank, by r->id or through r->store, and sets *r->outcome. */
void rank_join(struct rank *r, bool by_id);
/* Joins as all ranks but the absent ones, each on a thread. */
void run_store(const struct way *way, struct store *s, struct outcome outcomes[MOST]);
struct store *store_create(void);
struct outcome *outcomes_create(void);
void outcomes_destroy(struct outcome *outcomes);
/* Joins as that rank by the id, and ends the process. */
void rank_process(const struct way *way, int rank, const tutti_unique_id *id, struct outcome *outcome);
/* Joins as all ranks but the absent ones, each in a forked process. */
void run_id(const struct way *way, struct outcome outcomes[MOST]);
/* Checks that all ranks got the table of that group. */
void expect_tables(const struct way *way, const struct outcome outcomes[MOST]);
/* Checks that all ranks but the absent ones got that error, with that piece of text, and no table. */
void expect_failure(const struct way *way, const struct outcome outcomes[MOST], tutti_status status, const char *text);
