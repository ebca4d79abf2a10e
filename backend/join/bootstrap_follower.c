/* A rank answers the newest attempt that it finds in the store (bootstrap.c), and waits for the result. */
#include "backend/join/bootstrap_follower.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/status.h"
#include "backend/join/member_table.h"
#include "backend/join/records.h"
#include "backend/join/store_wait.h"
#include <stdio.h>

/* After this wait a rank logs what it waits for. */
static const int64_t HINT_NS = 5000000000;
/* While a rank waits for rank 0 in the store, it asks once in this time whether its caller has cancelled. So each rank
   sends the store one request in this time. */
enum { FIRST_SLICE_MS = 1000 };

/* ---- the result ---- */
static bool follower_has_other_terms(const struct follower *follower)
{
    return member_has_come(&follower->other_terms.member);
}
/* Reads rank 0's result, if it is there, and sets *out to its bytes. */
static tutti_status follower_get_result(struct follower *follower, size_t *out)
{
    char key[STORE_KEY_BYTES];
    store_key_of_attempt(&follower->first, "table", key);
    return store_get_value(&follower->config->store, key, NOW, sizeof follower->result, &follower->result, out);
}
/* Reads rank 0's result. TIMEOUT: it is not there yet. NO_MEMORY of the store: the value is larger than expected. */
static tutti_status follower_read_result(struct follower *follower)
{
    size_t bytes = 0;
    tutti_status status = follower_get_result(follower, &bytes);
    bool formed = status == TUTTI_NO_MEMORY || (status == TUTTI_OK && follower->result.status == TUTTI_OK);
    if (formed && follower_has_other_terms(follower)) return terms_fail_mismatch(&follower->other_terms, follower->own);
    if (status == TUTTI_OK && join_result_is_formed(&follower->result, bytes))
        return status_fail(TUTTI_INVALID_ARGUMENT,
            "two processes have joined %s as rank %d: this process (%llu) and another one, with which the group was "
            "formed",
            follower->mine->group, follower->config->rank, (unsigned long long)follower->mine->identity.pid);
    if (status != TUTTI_NO_MEMORY && (status != TUTTI_OK || bytes == sizeof follower->result)) return status;
    return status_fail(TUTTI_MISMATCH,
        "rank 0 of %s runs another version of tutti, or joins a group of %u ranks where this rank joins one of %u",
        follower->mine->group, follower->first.size, follower->mine->size);
}
/* Repeats the error of getting the table, unless rank 0 has removed the table. A store that cannot remove has one byte
   for each piece then. If rank 0 has shortened its result, another process has joined as this rank: INVALID_ARGUMENT.
   If rank 0 has replaced it by an error, this rank gets that error. */
static tutti_status follower_explain_lost_table(struct follower *follower, tutti_status status)
{
    char detail[STATUS_DETAIL_BYTES];
    if (status != TUTTI_SYSTEM && status != TUTTI_MISMATCH) return status;
    snprintf(detail, sizeof detail, "%s", status_detail());
    tutti_status read_status = follower_read_result(follower);
    if (read_status == TUTTI_OK && follower->result.status != TUTTI_OK)
        return join_result_apply(&follower->result, follower->mine);
    return read_status == TUTTI_INVALID_ARGUMENT ? read_status : status_repeat(status, detail);
}
/* Notifies the other processes that this rank of the group has failed, so that they do not wait for it. A second
   process that has joined as this rank (INVALID_ARGUMENT) is no member. */
static void follower_abort_formed(const struct follower *follower, tutti_status status)
{
    if (status == TUTTI_OK || status == TUTTI_ABORTED || status == TUTTI_INVALID_ARGUMENT) return;
    peers_abort_join(follower->first.token);
}
/* Gets the table of members, if the group has formed. */
static tutti_status follower_get_table(struct follower *follower)
{
    if (follower->result.status != TUTTI_OK) return TUTTI_OK;
    TRY(join_result_apply(&follower->result, follower->mine));
    const int64_t until_ms = deadline_add_ms(follower->deadline_ms, GRACE_MS);
    const struct member_table_request request =
        member_table_request_make(follower->config, &follower->first, follower->mine, follower->key, until_ms);
    tutti_status status = follower_explain_lost_table(follower, member_table_get(&request, &follower->table));
    follower_abort_formed(follower, status);
    return status;
}
/* Leaves the election of this host, if this rank has joined it. Without the table it also refuses the one that another
   process may send: the group may have formed after this rank gave up. */
static void follower_leave_attempt(struct follower *follower)
{
    if (follower->has_host_token) {
        member_release_host_token(&follower->first, follower->mine);
        if (!follower->table) host_table_refuse(follower->key, &follower->first);
    }
    follower->has_host_token = false;
}
/* Removes this rank's record and reason, which are not needed any more. */
static void follower_remove_answer(const struct follower *follower)
{
    char key[STORE_KEY_BYTES];
    if (!follower->has_answered || follower_has_other_terms(follower)) return;
    store_key_of_record(&follower->first, follower->config->rank, key);
    store_remove_value(follower->config, key);
    if (follower->mine->status == TUTTI_OK) return;
    store_key_of_rank(&follower->first, "why", follower->config->rank, key);
    store_remove_value(follower->config, key);
}
static tutti_status follower_publish_reason(const struct follower *follower)
{
    char key[STORE_KEY_BYTES];
    if (follower->mine->status == TUTTI_OK) return TUTTI_OK;
    store_key_of_rank(&follower->first, "why", follower->config->rank, key);
    return store_put_value(&follower->config->store, key, follower->why, strlen(follower->why));
}
/* Publishes this rank's record for the attempt of rank 0 that it has read. */
static tutti_status follower_publish_answer(struct follower *follower)
{
    char key[STORE_KEY_BYTES];
    /* The key must be known here before other processes see that this rank has come. */
    TRY(group_key_add(follower->first.key, follower->key));
    TRY(member_set_host_token(follower->config, &follower->first, follower->key, follower->deadline_ms,
        follower->mine));
    follower->has_host_token = true;
    TRY(follower_publish_reason(follower));
    store_key_of_record(&follower->first, follower->config->rank, key);
    return store_put_value(&follower->config->store, key, follower->mine, sizeof *follower->mine);
}
/* Publishes this rank's terms for an attempt with other terms. MISMATCH if it is of the same job, even if it is
   over. */
static tutti_status follower_publish_other_terms(struct follower *follower)
{
    if (!follower->is_over) TRY(store_put_other_statement(&follower->config->store, &follower->first, follower->own));
    return member_shares_job(&follower->first, follower->mine)
        ? terms_fail_mismatch(&follower->other_terms, follower->own)
        : TUTTI_OK;
}
/* Leaves the last attempt and enters another one, whose rank 0 has published the statement `found`. */
static tutti_status follower_enter_attempt(struct follower *follower, const struct statement *found)
{
    size_t ignored;
    follower_leave_attempt(follower);
    follower_remove_answer(follower);
    follower->first = found->member;
    follower->other_terms = terms_differ(found, follower->own) ? *found : (struct statement){ 0 };
    tutti_status status = follower_get_result(follower, &ignored);
    follower->is_over = status == TUTTI_OK || status == TUTTI_NO_MEMORY;
    follower->has_answered = status == TUTTI_TIMEOUT;
    if (!follower->is_over && !follower->has_answered) return status;
    if (follower_has_other_terms(follower)) return follower_publish_other_terms(follower);
    if (follower->has_answered) return follower_publish_answer(follower);
    /* A MISMATCH of the same job, which rank 0 published before this rank came, is this rank's result, too. */
    follower->has_answered =
        member_shares_job(&follower->first, follower->mine) && follower->result.status == TUTTI_MISMATCH;
    return TUTTI_OK;
}
/* Reads rank 0's statement, and enters its attempt if it is a new one. */
static tutti_status follower_read_first(struct follower *follower, int64_t timeout_ms)
{
    struct statement first;
    tutti_status status = store_get_statement(&follower->config->store, store_first_key, timeout_ms, &first);
    if (status == TUTTI_TIMEOUT) return TUTTI_OK;
    TRY(status);
    if (member_is_same_attempt(&first.member, &follower->first)) return TUTTI_OK;
    /* If this rank has answered an attempt with its own terms, that attempt's rank 0 sees the new "r0", too, and
       decides. */
    bool agreed = follower->has_answered && !follower_has_other_terms(follower);
    if (agreed && terms_differ(&first, follower->own))
        return store_put_other_statement(&follower->config->store, &first.member, follower->own);
    return follower_enter_attempt(follower, &first);
}
/* Fails with the reason why rank 0's result did not come in time. */
static tutti_status follower_fail_timeout(const struct follower *follower)
{
    const struct member *mine = follower->mine;
    if (follower->has_answered)
        return status_fail(TUTTI_TIMEOUT,
            "rank 0 of %u has joined %s, but within %lld ms has not announced the other ranks: it joined late and "
            "still waits, or it is stopped or gone",
            mine->size, mine->group, (long long)mine->timeout_ms);
    char earlier[160] = "";
    if (follower->is_over)
        snprintf(earlier, sizeof earlier,
            "; the store holds only an earlier attempt without this process (%u ranks, process %llu on %.39s), "
            "which has ended",
            follower->first.size, (unsigned long long)follower->first.identity.pid, follower->first.identity.host);
    return status_fail(TUTTI_TIMEOUT, "rank 0 of %u has not joined %s within %lld ms%s", mine->size, mine->group,
        (long long)mine->timeout_ms, earlier);
}
static void follower_log_wait(const struct follower *follower)
{
    LOG(WARN,
        "rank %d of %u waits for rank 0 to join %s: the store holds an earlier attempt of that name (%u ranks, "
        "process %llu on %.39s), which ended without this process",
        follower->config->rank, follower->mine->size, follower->mine->group, follower->first.size,
        (unsigned long long)follower->first.identity.pid, follower->first.identity.host);
}
/* Waits until rank 0 has published a statement, or the deadline. A rank 0 that forms a group alone publishes that under
   another key, so a rank of a group with a list of members does not wait here, but polls both keys. */
static tutti_status follower_await_first(struct follower *follower)
{
    const tutti_config *config = follower->config;
    if (config->members) return follower_read_first(follower, NOW);
    for (bool is_last_slice = false; !is_last_slice && !member_has_come(&follower->first);) {
        int64_t left_ms = deadline_remaining_ms(follower->deadline_ms);
        is_last_slice = !config->is_cancelled || left_ms <= FIRST_SLICE_MS;
        TRY(store_check_cancelled(config, follower->mine));
        TRY(follower_read_first(follower, is_last_slice ? left_ms : FIRST_SLICE_MS));
    }
    return TUTTI_OK;
}
/* Waits for rank 0's result in the newest attempt, because an earlier job may have left values in the store. */
static tutti_status follower_await_result(struct follower *follower)
{
    bool has_logged = false;
    int64_t began_ns = clock_ns(), deadline_ms = follower->deadline_ms;
    TRY(follower_await_first(follower));
    for (;;) {
        TRY(store_check_cancelled(follower->config, follower->mine));
        int64_t until_ms = follower->has_answered ? deadline_add_ms(deadline_ms, GRACE_MS) : deadline_ms;
        tutti_status status = follower->has_answered ? follower_read_result(follower) : TUTTI_TIMEOUT;
        if (status != TUTTI_TIMEOUT) return status;
        if (clock_ms() >= until_ms) return follower_fail_timeout(follower);
        store_poll_pause(began_ns, until_ms);
        if (!follower->has_answered || store_wait_is_late(began_ns)) TRY(follower_read_first(follower, NOW));
        if (!follower->has_answered && store_wait_is_late(began_ns))
            TRY(store_check_alone(follower->config, follower->own, 0));
        if (!follower->is_over || has_logged || clock_ns() - began_ns < HINT_NS) continue;
        has_logged = true;
        follower_log_wait(follower);
    }
}
void follower_decline_join(struct follower *follower)
{
    size_t ignored;
    int64_t began_ns = clock_ns(), until_ms = clock_deadline(GRACE_MS);
    if (until_ms > follower->deadline_ms) until_ms = follower->deadline_ms;
    while (follower_read_first(follower, NOW) == TUTTI_OK && clock_ms() < until_ms) {
        if (follower->has_answered && follower_get_result(follower, &ignored) != TUTTI_TIMEOUT) break;
        store_poll_pause(began_ns, until_ms);
    }
    follower_leave_attempt(follower);
}
/* Publishes that the caller has cancelled the join of this rank: in its record for rank 0, and to the other processes
   in case rank 0 has already decided. */
static void follower_publish_cancel(struct follower *follower)
{
    char key[STORE_KEY_BYTES];
    if (!follower->has_answered || follower_has_other_terms(follower)) return;
    follower->why = "its caller has cancelled the join, or was interrupted";
    follower->mine->status = TUTTI_ABORTED;
    peers_abort_join(follower->first.token);
    store_key_of_record(&follower->first, follower->config->rank, key);
    if (follower_publish_reason(follower) == TUTTI_OK)
        follower->config->store.put(follower->config->store.context, key, follower->mine, sizeof *follower->mine);
}
tutti_status follower_join_attempt(struct follower *follower)
{
    tutti_status status = follower_await_result(follower);
    if (status == TUTTI_OK) status = follower_get_table(follower);
    follower_leave_attempt(follower);
    if (status == TUTTI_ABORTED) {
        char detail[STATUS_DETAIL_BYTES];
        snprintf(detail, sizeof detail, "%s", status_detail());
        follower_publish_cancel(follower);
        return status_repeat(status, detail);
    }
    if (status != TUTTI_TIMEOUT) follower_remove_answer(follower);
    return status;
}
