/* The decision of rank 0 about a new group, as it is sent: that the group has formed, or a text about missing or
 * disagreeing ranks. Also the checks of records and the waits that
 * the ways to form a group have in common. */
#pragma once
#include "backend/join/bootstrap.h"
#include <stddef.h>

struct join_result {
    char magic[8];
    int32_t status;
    uint32_t size;
    char detail[512];
};
/* The length of a result that all ranks have accepted. */
enum { FORMED_BYTES = offsetof(struct join_result, detail) };

/* ---- rank 0 collects records; a table begins zeroed ---- */
/* Returns true if the record of a rank has been entered into the table. */
bool member_has_come(const struct member *member);
/* Copies a received record, and makes its texts printable. */
void member_copy_record(struct member *out, const struct member *member);
/* Checks that the record of another rank agrees with rank 0's, which is `mine`. MISMATCH shows both sides. */
tutti_status member_check_match(const struct member *mine, int rank, const struct member *theirs);
/* Fails with the status of a rank that cannot join, and its own words, `why`. */
tutti_status member_fail_unable(const struct member *member, int rank, const char *why);
/* Prints the ranks that are missing in the table: "rank 3", "ranks 3, 5". */
void members_list_absent(const struct member *table, uint32_t size, char *out, size_t bytes);
/* Fails with TIMEOUT because ranks are missing in the table, which the text lists. */
tutti_status members_fail_absent(const struct member *mine, const struct member *table);

/* ---- rank 0 decides ---- */
/* Allocates a zeroed table of mine->size records, which the caller frees with free(). Returns NULL if memory is short,
   and sets the last error. */
struct member *members_create(const struct member *mine);
/* Sets the result to `status`, with the text of this thread's last error unless it is OK. */
void join_result_decide(struct join_result *result, tutti_status status, uint32_t size);
/* Sets the first FORMED_BYTES bytes of the result of a group that has formed. */
void join_result_set_formed(struct join_result *out, uint32_t size);
/* Returns true if a result of `bytes` bytes is such a shortened one. */
bool join_result_is_formed(const struct join_result *result, size_t bytes);

/* ---- the other ranks accept ---- */
/* Returns OK, or sets the error that rank 0 decided, or MISMATCH for an invalid result. */
tutti_status join_result_apply(struct join_result *result, const struct member *mine);
/* Makes all texts of a table printable. */
void members_make_printable(struct member *table, uint32_t size);
/* Fails with INVALID_ARGUMENT unless the table has this rank's record at `rank`, because another process has then
   joined as this rank. */
tutti_status members_check_own(const struct member *table, int rank, const struct member *mine);

/* ---- waiting ---- */
/* Fails with ABORTED, in a text that names this rank, if is_cancelled(context) is true. is_cancelled may be NULL. */
tutti_status join_check_cancelled(bool (*is_cancelled)(void *context), void *context, int rank, const char *group);
/* The other ranks wait this much longer than rank 0. */
enum { GRACE_MS = 2000 };
/* Returns a later deadline, or INT64_MAX if the sum would overflow. */
int64_t deadline_add_ms(int64_t deadline_ms, int64_t more_ms);
/* Returns the time until the deadline in ms: at least 1, and at most INT32_MAX. */
int64_t deadline_remaining_ms(int64_t deadline_ms);
