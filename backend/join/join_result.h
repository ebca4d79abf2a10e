/* What rank 0 of a new group decides, in the form in which it travels: the table of all members, or the text that says
 * who is missing or what does not agree. Used by the ways of bootstrap.h only. */
#pragma once
#include "backend/join/bootstrap.h"
#include <stddef.h>

struct join_result {
    char magic[8];
    int32_t status;
    uint32_t size;
    char detail[512];
};
enum { FORMED_BYTES = offsetof(struct join_result, detail) };              /* of one that all have obeyed */
struct join_reply { struct join_result result; struct member table[]; };

/* ---- rank 0 collects: a table begins zeroed ---- */
bool member_has_come(const struct member *member);
void member_seat(struct member *out, const struct member *member);
/* Whether rank 0, who is `mine`, and another agree on size and build: MISMATCH. */
tutti_status member_check(const struct member *mine, int rank, const struct member *theirs);
/* What is told of a rank that cannot join, in its own words: the status that it has. */
tutti_status member_fail_unable(const struct member *member, int rank, const char *why);
/* "rank 3", "ranks 3, 5": those who are not in the table. */
void members_list_absent(const struct member *table, uint32_t size, char *out, size_t bytes);
tutti_status members_fail_absent(const struct member *mine, const struct member *table);

/* ---- and decides ---- */
struct join_reply *join_reply_create(const struct member *mine);   /* freed with free; NULL: NO_MEMORY, said */
void join_reply_decide(struct join_reply *reply, tutti_status status, uint32_t size);
void join_result_of_formed(struct join_result *out, uint32_t size);            /* FORMED_BYTES of it */
bool join_result_is_of_formed(const struct join_result *result, size_t bytes);

/* ---- the others obey ---- */
/* OK; or the error that rank 0 decided, said again; or MISMATCH when its result makes no sense. */
tutti_status join_result_apply(struct join_result *result, const struct member *mine);
/* Hands out the table when the result is OK and this rank is in it. */
tutti_status join_reply_accept(struct join_reply *found, int rank, const struct member *mine, struct member *out);

/* ---- time: the others wait so much longer than rank 0 ---- */
enum { GRACE_MS = 2000 };
int64_t deadline_later(int64_t deadline_ms, int64_t more_ms);
int64_t deadline_remaining_ms(int64_t deadline_ms);                    /* at least 1, at most 24 days */
