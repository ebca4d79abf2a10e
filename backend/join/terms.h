/* The terms of a group, which all its ranks must have been given: its name, its members among the ranks of the job, and
 * its algorithms. Every record has a digest of the terms. In a store, the records of rank 0 and of a rank with other
 * terms also have the terms as text, so that an error can show both. */
#pragma once
#include "backend/collectives/collectives.h"
#include "backend/engine/member.h"
#include <stdatomic.h>

/* The texts may be shortened. The size is fixed and there is no padding. */
struct terms {
    /* Digests of all terms and of the members, in full length. */
    uint64_t digest, members_digest;
    /* The rank of the process with these terms. */
    int32_t rank;
    /* 0 if no members were given. */
    uint32_t members_count;
    char name[48];
    /* For example "0-3, 8, 12 and 4 more". */
    char members[88];
    char algorithms[56];
};
/* The form in a store. */
struct statement { struct member member; struct terms terms; };

/* Sets *out to the terms that this rank was given. `chosen` has the algorithm that the options name for each
   collective, or NULL. */
void terms_init(const tutti_config *config, _Atomic(const struct algorithm *) chosen[COLLECTIVE_COUNT],
    struct terms *out);
/* Prints `count` ranks into `bytes` bytes, with ascending runs as "0-3", and the number of those that do not fit. */
void terms_print_members(const int *members, int count, char *out, size_t bytes);
/* Terminates the texts of terms and makes them printable, because they may come from another process. */
void terms_make_printable(struct terms *terms);
/* Fails with MISMATCH, and shows where the two terms differ and what to do. */
tutti_status terms_fail_mismatch(const struct statement *first, const struct statement *second);

/* ---- the job of a group ---- */
/* Returns the number of this process's last group that is a whole job, or 0. It is equal on all ranks of that group and
   differs from the numbers of other groups. Records of earlier attempts in a store have other numbers. */
uint64_t job_current(void);
/* Makes a group this process's current job. `first` is the record of its rank 0. */
void job_begin(const struct member *first);
/* Ends the current job if it is the group that this process has left. `first` is the record of that group's rank 0. */
void job_end(const struct member *first);
/* Returns true if both members joined as ranks of the same job. */
static inline bool member_shares_job(const struct member *a, const struct member *b)
{
    return a->job != 0 && a->job == b->job;
}
