/* What the ranks of a group tell each other of themselves. */
#pragma once
#include "backend/processes/links.h"
#include <string.h>

struct member {                                         /* fixed size, no padding: travels as bytes */
    struct identity identity;
    unsigned char token[16];                            /* rank 0's names the group, its segment and descriptor */
    unsigned char key[KEY_BYTES];                       /* rank 0's, on the way through a store: the group's */
    int64_t timeout_ms;
    uint32_t size;                                      /* what this rank thinks the group's size is */
    uint32_t build;                                     /* of what sources its tutti was made; never 0 */
    char group[32];                                     /* name, for messages */
    int32_t host;                                       /* where it is, or simulates to be: below the job's size */
    uint32_t simulates; /* how, alike on all ranks; 0: nobody does; see SIMULATES_LINKS */
    uint16_t fabrics;                                   /* the set of what carries its messages to other hosts */
    uint16_t encrypts;                                  /* what goes to other hosts: 1, or 0 */
    int32_t status;                                     /* OK; else why it cannot join: a tutti_status */
    unsigned char host_token[16];                       /* equal: they have shown that they are on one host */
    struct contact contact;                             /* for those on other hosts; family 0: none */
    uint64_t job;                                       /* of which the group is a part: job_current; 0: not known */
    uint64_t terms;                                     /* the digest of what it was told of the group: terms.h */
};
/* A bit of `simulates`: they reach each other as real hosts do; else through shared memory. */
static const uint32_t SIMULATES_LINKS = 2;
static inline bool member_shares_process(const struct member *a, const struct member *b)
{
    return memcmp(a->identity.nonce, b->identity.nonce, sizeof a->identity.nonce) == 0;
}
