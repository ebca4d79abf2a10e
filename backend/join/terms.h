/* What all ranks of a group must have been told alike: the group's name, which ranks of the job are its members, and
 * which algorithms it is to use. Every record has a digest of it; rank 0's record in a store, and the record of a rank
 * that was told otherwise, are followed by the words, so that an error can show both. */
#pragma once
#include "backend/collectives/collectives.h"
#include "backend/processes/member.h"
#include <stdatomic.h>

struct terms {                                          /* printable, and shortened; fixed size, no padding */
    uint64_t digest, members_digest;                    /* of all of it, and of the members, whatever their length */
    int32_t rank;                                       /* of the process that was told so */
    uint32_t members_count;                             /* 0: it was told none */
    char name[48];
    char members[88];                                   /* "0-3, 8, 12 and 4 more" */
    char algorithms[56];
};
struct statement { struct member member; struct terms terms; };        /* as it lies in a store */

void terms_state(const tutti_config *config, _Atomic(const struct algorithm *) chosen[FAMILY_COUNT], struct terms *out);
/* The ranks of a group, ascending runs as "0-3"; those that do not fit are counted. */
void terms_print_members(const int *members, int count, char *out, size_t bytes);
/* What came from a store, made printable. */
void terms_clean(struct terms *terms);
/* MISMATCH: shows what both were told where they differ, and says what to do. */
tutti_status terms_fail(const struct statement *first, const struct statement *second);

/* ---- which job ---- */
/* The last group of this process that is a whole job, and no part of one: the same number on all its ranks, and of no
   other group. 0: none. A store may hold records of earlier attempts of a job; those with this number are none. */
uint64_t job_current(void);
void job_begin(const struct member *first);             /* rank 0 of a group that is a job */
void job_end(const struct member *first);               /* rank 0 of any group that this process has left */
static inline bool member_shares_job(const struct member *a, const struct member *b)
{
    return a->job != 0 && a->job == b->job;
}
