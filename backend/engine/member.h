/* The record that each rank of a group publishes about itself for the others. */
#pragma once
#include "backend/links/sock_address.h"
#include "backend/processes/peers.h"
#include <string.h>

/* The record travels as bytes: its size is fixed and there is no padding. */
struct member {
    struct identity identity;
    /* Rank 0's token names the group, its segments and their descriptors. */
    unsigned char token[16];
    /* The group's key: only in rank 0's record, while the record travels through a store. */
    unsigned char key[KEY_BYTES];
    int64_t timeout_ms;
    /* The size of the group in this rank's call. */
    uint32_t size;
    /* A hash of the sources from which tutti was built. It is never 0. */
    uint32_t build;
    /* The name of the group, for errors and logs. */
    char group[32];
    /* The number of this rank's simulated host; 0 if hosts are real. host_token tells real hosts apart. */
    int32_t host;
    /* A hash of TUTTI_HOSTS, equal on all ranks, with SIMULATES_LINKS as a flag. 0: the hosts are real. */
    uint32_t simulates;
    /* The set of fabrics that carry messages to other hosts. */
    uint16_t fabrics;
    /* 1 if messages to other hosts are encrypted, else 0. */
    uint16_t encrypts;
    /* Why this rank cannot join (a tutti_status), or OK. */
    int32_t status;
    /* Equal for processes that have proved that they share a host. */
    unsigned char host_token[16];
    /* The address to which processes of other hosts connect. Its family is 0 if they cannot. */
    struct sock_address contact;
    /* The job that the group is a part of (job_current in join/terms.h), or 0 if unknown. */
    uint64_t job;
    /* The digest of the group's terms (join/terms.h). */
    uint64_t terms;
};
/* A bit of `simulates`: simulated hosts use links and a network, as real hosts do. Without it they use shared
   memory. */
static const uint32_t SIMULATES_LINKS = 2;
/* Returns true if both ranks are threads of one process. */
static inline bool member_shares_process(const struct member *a, const struct member *b)
{
    return memcmp(a->identity.nonce, b->identity.nonce, sizeof a->identity.nonce) == 0;
}
