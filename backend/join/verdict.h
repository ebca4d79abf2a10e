/* What rank 0 of a new group decides, in the form in which it travels: the table of all members, or the text that says
 * who is missing or what does not agree. Used by the ways of bootstrap.h only. */
#pragma once
#include "backend/join/bootstrap.h"
#include <stddef.h>

struct verdict {
    char magic[8];
    int32_t status;
    uint32_t size;
    char detail[512];
};
enum { FORMED_BYTES = offsetof(struct verdict, detail) };              /* of one that all have obeyed */
struct announcement { struct verdict verdict; struct member table[]; };

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
struct announcement *announcement_create(const struct member *mine);   /* freed with free; NULL: NO_MEMORY, said */
void announcement_decide(struct announcement *announcement, tutti_status status, uint32_t size);
void verdict_of_formed(struct verdict *out, uint32_t size);            /* FORMED_BYTES of it */
bool verdict_is_of_formed(const struct verdict *verdict, size_t bytes);

/* ---- the others obey ---- */
/* OK; or the error that rank 0 decided, said again; or MISMATCH when its verdict makes no sense. */
tutti_status verdict_obey(struct verdict *verdict, const struct member *mine);
/* Hands out the table when the verdict is OK and this rank is in it. */
tutti_status announcement_accept(struct announcement *found, int rank, const struct member *mine, struct member *out);

/* ---- time: the others wait so much longer than rank 0 ---- */
enum { GRACE_MS = 2000 };
int64_t deadline_later(int64_t deadline_ms, int64_t more_ms);
int64_t deadline_remaining_ms(int64_t deadline_ms);                    /* at least 1, at most 24 days */
