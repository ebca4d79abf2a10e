/* Through a key-value store, one key written by each rank: rank 0 collects the records of all, checks them, and puts
 * one verdict under "table". The others wait for it a little longer than their own deadline, so that they report what
 * rank 0 found and not merely that they have waited. */
#include "backend/bootstrap.h"
#include "backend/base/status.h"
#include "backend/host/socket.h"
#include "backend/verdict.h"
#include <stdio.h>
#include <stdlib.h>

tutti_status bootstrap_random(void *bytes, size_t count) { return random_fill(bytes, count); }

static void name_record(int rank, char out[16]) { snprintf(out, 16, "r%d", rank); }

static tutti_status store_put(const tutti_store *store, const char *key, const void *value, size_t bytes)
{
    tutti_status status = store->put(store->context, key, value, bytes);
    if (status == TUTTI_OK) return status;
    return status_fail(status, "the key-value store failed to take key %s: %s", key, status_message(status));
}
static tutti_status store_get(const tutti_store *store, int rank, struct member *out, int64_t timeout_ms)
{
    char key[16];
    struct member found;
    size_t bytes = 0;
    name_record(rank, key);
    tutti_status status = store->get(store->context, key, &found, sizeof found, &bytes, timeout_ms);
    if (status == TUTTI_TIMEOUT) return status;
    if (status == TUTTI_NO_MEMORY || (status == TUTTI_OK && bytes != sizeof found))
        return status_fail(TUTTI_MISMATCH, "rank %d runs another version of tutti than rank 0", rank);
    if (status != TUTTI_OK)
        return status_fail(status, "the key-value store failed to give key %s: %s", key, status_message(status));
    member_seat(out, &found);
    return TUTTI_OK;
}
static tutti_status store_collect(const tutti_store *store, const struct member *mine, int64_t deadline_ms,
                                  struct member *table)
{
    bool late = false;
    for (int r = 1; r < (int)mine->size; r++) {
        tutti_status status = store_get(store, r, &table[r], late ? 1 : deadline_remaining_ms(deadline_ms));
        if (status == TUTTI_TIMEOUT) { late = true; continue; }        /* go on, to name all that are missing */
        TRY(status);
        TRY(member_check(mine, r, &table[r]));
    }
    return late ? members_fail_absent(mine, table) : TUTTI_OK;
}
static tutti_status store_lead(const tutti_store *store, const struct member *mine, int64_t deadline_ms,
                               struct announcement *announcement)
{
    announcement->table[0] = *mine;
    tutti_status status = store_collect(store, mine, deadline_ms, announcement->table);
    announcement_decide(announcement, status, mine->size);
    size_t bytes = sizeof *announcement + (status == TUTTI_OK ? mine->size * sizeof *mine : 0);
    tutti_status told = store_put(store, "table", announcement, bytes);
    return status == TUTTI_OK ? told : status_repeat(status, announcement->verdict.detail);
}
static tutti_status fail_unheard(const tutti_store *store, const struct member *mine)
{
    struct member first;
    if (store_get(store, 0, &first, 1) == TUTTI_OK)
        return status_fail(TUTTI_TIMEOUT, "rank 0 of %u has joined group %s, but within %lld ms has not said who else "
            "has: it joined late and still waits, or it is stopped or gone", mine->size, mine->group,
            (long long)mine->timeout_ms);
    return status_fail(TUTTI_TIMEOUT, "rank 0 of %u has not joined group %s within %lld ms", mine->size, mine->group,
        (long long)mine->timeout_ms);
}
static tutti_status store_follow(const tutti_store *store, const struct member *mine, int64_t deadline_ms,
                                 struct announcement *found)
{
    size_t bytes = 0, whole = sizeof *found + mine->size * sizeof *mine;
    int64_t patience_ms = deadline_remaining_ms(deadline_later(deadline_ms, GRACE_MS));
    tutti_status status = store->get(store->context, "table", found, whole, &bytes, patience_ms);
    if (status == TUTTI_TIMEOUT) return fail_unheard(store, mine);
    size_t expected = found->verdict.status == TUTTI_OK ? whole : sizeof *found;
    if (status == TUTTI_NO_MEMORY || (status == TUTTI_OK && bytes != expected))
        return status_fail(TUTTI_MISMATCH,
            "rank 0 of group %s runs another version of tutti, or was told of more ranks than %u", mine->group,
            mine->size);
    if (status == TUTTI_OK) return status;
    return status_fail(status, "the key-value store failed to give the table: %s", status_message(status));
}
tutti_status bootstrap_store(const tutti_store *store, int rank, const struct member *mine, int64_t deadline_ms,
                             struct member *table)
{
    char key[16];
    struct announcement *announcement = announcement_create(mine);
    if (!announcement) return TUTTI_NO_MEMORY;
    name_record(rank, key);
    tutti_status status = store_put(store, key, mine, sizeof *mine);
    if (status == TUTTI_OK)
        status = rank == 0 ? store_lead(store, mine, deadline_ms, announcement)
                           : store_follow(store, mine, deadline_ms, announcement);
    if (status == TUTTI_OK) status = announcement_accept(announcement, rank, mine, table);
    free(announcement);
    return status;
}
