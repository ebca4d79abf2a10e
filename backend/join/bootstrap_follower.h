/* A rank other than 0 that joins through a key-value store. Only bootstrap.c uses it. */
#pragma once
#include "backend/join/join_result.h"
#include "backend/memory/shared_table.h"

/* A rank other than 0 while it joins. */
struct follower {
    const tutti_config *config;
    /* This rank's statement, and the member record in it. */
    struct statement *own;
    struct member *mine;
    /* The reason for which this rank cannot join, or any text if it can. */
    const char *why;
    int64_t deadline_ms;
    /* Rank 0's result. */
    struct join_result result;
    /* The table of members, when the group has formed. */
    struct shared_table *table;
    /* The record of rank 0 that was read last, or zero bytes. */
    struct member first;
    /* The id of rank 0's key. */
    struct key_id *key;
    /* is_over: the attempt had a result before this rank came. has_answered: this rank takes the result of the attempt,
       because it has answered it, or because the result is a MISMATCH of its own job. */
    bool is_over, has_answered;
    /* This rank has joined the attempt's host election. */
    bool has_host_token;
    /* Rank 0's statement if its terms differ from this rank's, else zero bytes. */
    struct statement other_terms;
};
/* Joins the attempt of rank 0: answers it, and waits for its result. OK: follower->result is there and valid; if the
   group has formed, the caller also leaves follower->table. */
tutti_status follower_join_attempt(struct follower *follower);
/* Publishes that this rank cannot join. Ranks that join within GRACE_MS get its error. */
void follower_decline_join(struct follower *follower);
