/* Forms a group through a key-value store. The store may still hold keys of earlier attempts: records of dead
 * processes, or of a group that was destroyed.
 *
 * Rank 0 begins an attempt. It draws a token and writes its record, which has the token, under "r0". All other keys
 * of the attempt begin with the token: rank 3 answers under "<token>/r3", and rank 0 writes its result under
 * "<token>/table". So only "r0" can be out of date. The other ranks detect an outdated "r0" without a check whether its
 * process lives. A result that exists when a rank first reads "r0" is of an attempt that ended without this rank, so it
 * waits for another "r0". Otherwise the rank answers, and reads "r0" again while it waits. A result that arrives then
 * was made after this rank came. The other ranks wait a little longer than their deadline, so that they report the
 * error that rank 0 found.
 *
 * Rank 0's record also has the group's key (processes/keys.h) and the token by which the processes of one host find
 * each other (processes/host_election.h). Each rank adds the key and joins the token's host election before it answers.
 * It leaves the election when the result has come, because all have joined it by then. A count of restarts would not
 * identify attempts, because each agent of torchrun counts only the restarts that it began.
 *
 * "r0" has the terms of the group (terms.h) as text. A rank with other terms, also one that joins as rank 0, writes
 * its own under "<token>/other", which rank 0 reads before it decides. So all ranks get a MISMATCH, and no record of a
 * rank that agrees is overwritten. The store may hold an earlier attempt, but none of the same job. So if "r0" is of
 * the same job, a rank with other terms reports the MISMATCH at once, even if that group has formed.
 *
 * A group of one rank does not wait for others, and several such groups may have one name. Each writes its terms
 * under "alone" and its rank in the job, where ranks that wait for that rank find them.
 *
 * A rank that cannot join (for a missing interface, say) sets the status in its record, and writes the reason under
 * "<token>/why3". Ranks that come within 2 s get it.
 *
 * If the group has formed, rank 0 writes the table of members before the result: under "<token>/members0",
 * "<token>/members1" and so on, in pieces of at most 4 MiB, because a store may refuse large values (torch's TCPStore
 * refuses more than 8 MiB). The result is stored under "<token>/table", which once held the table, so that ranks of
 * earlier versions read a MISMATCH there.
 *
 * A group that has formed leaves two keys, "r0" and "<token>/table". Each other rank removes its record when it has the
 * table. When all have joined, rank 0 shortens the result and removes the table. If rank 0 then cannot join, because a
 * rank cannot, it replaces the result by an error and removes the table. "r0" stays as it is, because it may already
 * belong to the next attempt. */
#include "backend/join/bootstrap.h"
#include "backend/base/clock.h"
#include "backend/base/random.h"
#include "backend/base/status.h"
#include "backend/join/bootstrap_follower.h"
#include "backend/join/member_table.h"
#include "backend/join/records.h"
#include "backend/join/store_wait.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    /* After this wait rank 0 reads all records again. */
    AGAIN_MS = 1000,
    /* The most ranks whose records rank 0 reads if a record has a larger group size than its own. */
    MOST_EXPECTED = 4096
};

/* ---- a group of one ---- */
tutti_status bootstrap_publish_alone(const tutti_config *config, const struct member *mine, const struct terms *terms)
{
    char key[STORE_KEY_BYTES];
    struct statement own = { *mine, *terms };
    own.member.terms = terms->digest;
    store_key_of_alone(config->members[0], key);
    return store_put_value(&config->store, key, &own, sizeof own);
}

/* ---- rank 0 ---- */
/* Fails with MISMATCH if "r0" already has a record of the same job with other terms. Any other record is
   overwritten. */
static tutti_status store_check_earlier(const tutti_store *store, const struct statement *own)
{
    struct statement earlier;
    tutti_status status = store_get_statement(store, store_first_key, NOW, &earlier);
    if (status != TUTTI_OK || !terms_differ(&earlier, own)) return TUTTI_OK;
    TRY(store_put_other_statement(store, &earlier.member, own));
    return member_shares_job(&earlier.member, &own->member) ? terms_fail_mismatch(&earlier, own) : TUTTI_OK;
}
/* Fails with MISMATCH if another rank 0, or any other rank, has other terms. Another rank 0 gets this rank's terms. */
static tutti_status store_check_terms(const tutti_store *store, const struct statement *own)
{
    char key[STORE_KEY_BYTES];
    struct statement other;
    tutti_status status = store_get_statement(store, store_first_key, NOW, &other);
    if (status != TUTTI_OK || !terms_differ(&other, own)) {
        store_key_of_other(&own->member, key);
        status = store_get_statement(store, key, NOW, &other);
        if (status == TUTTI_TIMEOUT) return TUTTI_OK;
        TRY(status);
    }
    if (other.terms.rank == 0) TRY(store_put_other_statement(store, &other.member, own));
    return terms_fail_mismatch(own, &other);
}
/* Fails if another process has joined as rank 0 at the same time. */
static tutti_status store_check_only_rank0(const tutti_store *store, const struct statement *own)
{
    struct statement first;
    tutti_status status = store_get_statement(store, store_first_key, NOW, &first);
    if (status == TUTTI_TIMEOUT || (status == TUTTI_OK && member_is_same_attempt(&first.member, &own->member)))
        return TUTTI_OK;
    TRY(status);
    return status_fail(TUTTI_INVALID_ARGUMENT,
        "two processes have joined %s as rank 0: this process (%llu) and process %llu on %.39s", own->member.group,
        (unsigned long long)own->member.identity.pid, (unsigned long long)first.member.identity.pid,
        first.member.identity.host);
}
/* Waits for the record of a rank. `has_error` means that rank 0 already has an error, so it checks no more terms. */
static tutti_status store_await_record(const tutti_config *config, const struct statement *own, int rank,
    bool has_error, int64_t deadline_ms, struct member *out)
{
    char key[STORE_KEY_BYTES];
    const tutti_store *store = &config->store;
    int64_t began_ns = clock_ns();
    store_key_of_record(&own->member, rank, key);
    for (;;) {
        TRY(store_check_cancelled(config, &own->member));
        bool last = clock_ms() >= deadline_ms;
        tutti_status status = store_get_record(store, key, rank, NOW, out);
        if (status != TUTTI_TIMEOUT || last) return status;
        if (store_wait_is_late(began_ns) && !has_error) {
            TRY(store_check_terms(store, own));
            TRY(store_check_only_rank0(store, own));
            if (rank < config->size) TRY(store_check_alone(config, own, rank));
        }
        store_poll_pause(began_ns, deadline_ms);
    }
}
/* Checks that a rank that has come can join and agrees. In a record of another build only the build is valid. */
static tutti_status store_check_record(const tutti_store *store, const struct member *mine, int rank,
    const struct member *theirs)
{
    char key[STORE_KEY_BYTES], why[STATUS_DETAIL_BYTES / 2] = "its own error says why";
    size_t bytes = 0;
    if (theirs->status == TUTTI_OK || theirs->build != mine->build) return member_check_match(mine, rank, theirs);
    store_key_of_rank(mine, "why", rank, key);
    tutti_status status = store_get_value(store, key, NOW, sizeof why - 1, why, &bytes);
    if (status == TUTTI_OK) why[bytes] = 0;
    return member_fail_unable(theirs, rank, why);
}
/* Reads all records again, because a rank may have died after its answer and been restarted. */
static tutti_status store_reread_records(const tutti_store *store, const struct member *mine, struct member *table)
{
    char key[STORE_KEY_BYTES];
    for (int r = 1; r < (int)mine->size; r++) {
        store_key_of_record(mine, r, key);
        tutti_status status = store_get_record(store, key, r, NOW, &table[r]);
        if (status != TUTTI_TIMEOUT) TRY(status);
        TRY(store_check_record(store, mine, r, &table[r]));
    }
    return TUTTI_OK;
}
/* The first error, and the time until which rank 0 still waits for ranks that should get it. */
struct first_error { tutti_status status; char detail[STATUS_DETAIL_BYTES]; int64_t deadline_ms; };
/* Records an error with the text of this thread's last error. */
static void first_error_record(struct first_error *first, tutti_status status)
{
    if (status == TUTTI_OK) return;
    first->status = status;
    snprintf(first->detail, sizeof first->detail, "%s", status_detail());
    if (clock_ms() + GRACE_MS < first->deadline_ms) first->deadline_ms = clock_ms() + GRACE_MS;
}
/* Rank 0: waits for the records of all ranks in the store and checks each. Goes on after a missing rank, so
   that the error names all of them, and up to GRACE_MS after another error, so that ranks that come late get it. `why`
   is the reason if this rank cannot join. */
static tutti_status store_collect_records(const tutti_config *config, const struct statement *own, const char *why,
    int64_t deadline_ms, struct member *table)
{
    const tutti_store *store = &config->store;
    const struct member *mine = &own->member;
    struct first_error first = { TUTTI_OK, "", deadline_ms };
    bool is_rank_missing = false;
    int64_t began_ms = clock_ms();
    if (mine->status != TUTTI_OK) first_error_record(&first, member_fail_unable(mine, 0, why));
    for (uint32_t r = 1, expected = mine->size; r < expected; r++) {
        struct member beyond = { 0 }, *theirs = r < mine->size ? &table[r] : &beyond;
        bool has_error = first.status != TUTTI_OK;
        tutti_status status = store_await_record(config, own, (int)r, has_error, first.deadline_ms, theirs);
        if (status == TUTTI_TIMEOUT) { is_rank_missing = true; continue; }
        if (status != TUTTI_OK && status != TUTTI_MISMATCH) return status;
        if (!has_error)
            first_error_record(&first, status == TUTTI_OK ? store_check_record(store, mine, (int)r, theirs) : status);
        /* Rank r may still come and get the error. */
        if (!has_error && status == TUTTI_MISMATCH) r--;
        if (theirs->size > expected) expected = theirs->size < MOST_EXPECTED ? theirs->size : MOST_EXPECTED;
    }
    if (first.status != TUTTI_OK) return status_repeat(first.status, first.detail);
    TRY(store_check_terms(store, own));
    if (is_rank_missing) return members_fail_absent(mine, table);
    return clock_ms() - began_ms > AGAIN_MS ? store_reread_records(store, mine, table) : TUTTI_OK;
}
/* Publishes the table of the members whose records have come, and sets *out to it. Adds the records that are in the
   store to stored->size. */
static tutti_status store_publish_table(const struct member_table_request *request, struct member *members,
    struct store_pieces *stored, struct shared_table **out, int *descriptor)
{
    const struct member *mine = request->host.mine;
    /* The other ranks have the group's key from "r0". */
    explicit_bzero(members[0].key, sizeof members[0].key);
    members_make_printable(members, mine->size);
    TRY(member_table_create(request, members, out, descriptor));
    const struct store_pieces pieces = { mine->size, STORE_PIECE_BYTES };
    return store_put_table(request->store, mine, &pieces, shared_table_data(*out), &stored->size);
}
/* Rank 0: begins an attempt. */
static tutti_status store_publish_first(const tutti_store *store, const struct statement *own)
{
    /* Another rank 0 that puts its record between these two calls is not noticed. */
    TRY(store_check_earlier(store, own));
    return store_put_value(store, store_first_key, own, sizeof *own);
}
/* Rank 0: begins an attempt, collects the records, decides, and publishes the table of members, then the result. Sets
   *out to the table, and *descriptor for host_table_send. */
static tutti_status store_publish_result(const struct member_table_request *request, const tutti_config *config,
    const struct statement *own, const char *why, struct shared_table **out, int *descriptor)
{
    char key[STORE_KEY_BYTES];
    struct join_result result;
    const tutti_store *store = &config->store;
    const struct member *mine = &own->member;
    struct member *members = members_create(mine);
    if (!members) return TUTTI_NO_MEMORY;
    members[0] = *mine;
    tutti_status status = store_publish_first(store, own);
    if (status != TUTTI_OK) {
        free(members);
        return status;
    }
    struct store_pieces stored = { 0, STORE_PIECE_BYTES };
    status = store_collect_records(config, own, why, request->host.deadline_ms, members);
    if (status == TUTTI_OK) status = store_publish_table(request, members, &stored, out, descriptor);
    else free(members);
    join_result_decide(&result, status, mine->size);
    store_key_of_attempt(mine, "table", key);
    tutti_status put_status = store_put_value(store, key, &result, sizeof result);
    /* No rank reads a table whose result is an error, or is not there. */
    if (status != TUTTI_OK || put_status != TUTTI_OK) store_remove_table(config, mine, &stored);
    return status == TUTTI_OK ? put_status : status_repeat(status, result.detail);
}
/* Rank 0's part of joining through the store. */
static tutti_status store_run_rank0(const tutti_config *config, struct statement *own, const char *why,
    int64_t deadline_ms, struct shared_table **out, struct key_id *key)
{
    struct member *mine = &own->member;
    int descriptor = -1;
    TRY(random_fill(mine->key, sizeof mine->key));
    TRY(group_key_add(mine->key, key));
    TRY(member_set_host_token(config, mine, key, deadline_ms, mine));
    const struct member_table_request request = member_table_request_make(config, mine, mine, key, deadline_ms);
    tutti_status status = store_publish_result(&request, config, own, why, out, &descriptor);
    if (status == TUTTI_OK) {
        status = host_table_send(&request.host, shared_table_data(*out), descriptor);
        /* The other ranks have the result already. */
        if (status != TUTTI_OK) {
            peers_abort_join(mine->token);
            status = bootstrap_withdraw_result(config, mine, status);
        }
    } else if (descriptor >= 0) close(descriptor);
    member_release_host_token(mine, mine);
    return status;
}
void bootstrap_shorten_result(const tutti_config *config, const struct member *mine)
{
    char key[STORE_KEY_BYTES];
    struct join_result formed;
    join_result_set_formed(&formed, mine->size);
    store_key_of_attempt(mine, "table", key);
    /* If the store refuses, the whole result stays. */
    config->store.put(config->store.context, key, &formed, FORMED_BYTES);
    const struct store_pieces pieces = { mine->size, STORE_PIECE_BYTES };
    store_remove_table(config, mine, &pieces);
}
tutti_status bootstrap_withdraw_result(const tutti_config *config, const struct member *mine, tutti_status status)
{
    char key[STORE_KEY_BYTES], detail[STATUS_DETAIL_BYTES];
    struct join_result result;
    const struct store_pieces pieces = { mine->size, STORE_PIECE_BYTES };
    /* Ranks that have read the table find these two errors there by themselves. A rank that reads this result instead
       gets the same class. */
    bool is_in_table = status == TUTTI_INVALID_ARGUMENT || status == TUTTI_MISMATCH;
    snprintf(detail, sizeof detail, "%s", status_detail());
    join_result_decide(&result, is_in_table ? status : TUTTI_PEER_LOST, mine->size);
    snprintf(result.detail, sizeof result.detail,
        "rank 0 of %s could not join after the ranks had found each other: %.400s", mine->group, detail);
    store_key_of_attempt(mine, "table", key);
    /* A rank that finds the group formed but no table would report a second process of its rank, or a loss of the
       store, so the table is removed last, and not without the error. */
    if (config->store.put(config->store.context, key, &result, sizeof result) == TUTTI_OK)
        store_remove_table(config, mine, &pieces);
    return status_repeat(status, detail);
}

/* ---- all ranks ---- */
tutti_status bootstrap_store(const tutti_config *config, const struct member *mine, const struct terms *terms,
    int64_t deadline_ms, struct shared_table **out, struct key_id *key)
{
    char why[STATUS_DETAIL_BYTES / 2];
    snprintf(why, sizeof why, "%.*s", (int)sizeof why - 1, status_detail());
    struct statement own = { *mine, *terms };
    own.member.terms = terms->digest;
    /* A rank that cannot join takes no part in the host election. */
    if (mine->status != TUTTI_OK) own.member.contact = (struct sock_address){ 0 };
    struct follower follower = {
        .config = config, .own = &own, .mine = &own.member, .why = why, .deadline_ms = deadline_ms, .key = key
    };
    tutti_status status = TUTTI_OK;
    if (config->rank == 0) status = store_run_rank0(config, &own, why, deadline_ms, &follower.table, key);
    else if (mine->status == TUTTI_OK) status = follower_join_attempt(&follower);
    else follower_decline_join(&follower);
    if (mine->status != TUTTI_OK) status = status_repeat((tutti_status)mine->status, why);
    else if (status == TUTTI_OK && config->rank) status = join_result_apply(&follower.result, mine);
    *out = status == TUTTI_OK ? follower.table : NULL;
    if (status != TUTTI_OK) shared_table_leave(follower.table);
    return status;
}
