/* Ranks that bring their records to each other, for tests: threads that share a store in memory, or processes that know
   a unique id. The identities are made up. */
#pragma once
#include "backend/base/status.h"
#include "backend/join/bootstrap.h"
#include <pthread.h>

enum { MOST = 8, VALUE_BYTES = 8192, JOIN_MS = 60000, SHORT_MS = 1000 }; /* SHORT: enough to join when all is busy */
struct entry { char key[64]; unsigned char value[VALUE_BYTES]; size_t bytes; };
struct store {
    pthread_mutex_t lock;
    struct entry entries[8 * MOST];
    int count, puts, gets;
    tutti_status refusal;                                              /* of every put, unless OK */
};
struct way {                                                           /* what a test varies */
    int size;                                                          /* of the group as rank 0 sees it */
    int odd_rank, odd_size, odd_build;                                 /* one rank that was told otherwise */
    int absent;                                                        /* bits: ranks that do not come */
    int64_t timeout_ms;
    int attempt;                                                       /* each of other processes, with other tokens */
    tutti_status odd_status;                                           /* not OK: why the odd rank cannot join */
    bool has_contacts, odd_contact;                                    /* all offer one; the odd rank does otherwise */
    bool (*odd_cancels)(void *store);                                  /* is_cancelled of the odd rank */
    const int *members;                                                /* what they are told: [size], or NULL */
    uint64_t job;
    const char *name;
    const struct algorithm *all_reduce;                                /* asked for */
};
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
void store_put_first(struct store *s, const struct way *way);          /* the word of its rank 0, and no result */
void bring(struct rank *r, bool by_id);
void run_store(const struct way *way, struct store *s, struct outcome outcomes[MOST]);
struct store *store_create(void);
struct outcome *outcomes_create(void);
void outcomes_destroy(struct outcome *outcomes);
void rank_process(const struct way *way, int rank, const tutti_unique_id *id, struct outcome *outcome);
void run_id(const struct way *way, struct outcome outcomes[MOST]);
void expect_tables(const struct way *way, const struct outcome outcomes[MOST]);
void expect_failure(const struct way *way, const struct outcome outcomes[MOST], tutti_status status, const char *text);
