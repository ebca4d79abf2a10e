/* The datagrams by which two processes find each other's queues, and where they lie. */
#pragma once
#include "backend/transports/verbs/nic.h"
#include <stddef.h>

#define HELLO_MAGIC "tutti 3"
enum handshake_stage { GREETS, OPEN, GIVEN_UP }; /* OPEN: it has heard all it must, so this needs no answer */
struct hello {
    char magic[8];
    struct greeting greeting;
    struct verbs_address address;
    uint64_t theirs; /* the turn of the endpoint there, as far as it is known */
    uint64_t box;
    uint32_t box_key, psn;
    uint32_t stage;
    uint32_t lane_count;
    struct verbs_address lanes[RAILS_MOST];
    unsigned char proof[PROOF_BYTES]; /* of what is before it */
};
enum { PROVED_BYTES = offsetof(struct hello, proof) };
enum { ROUTE_BYTES = 40, SLOT_BYTES = 512 }; /* of a slot: what the device puts before a datagram; all of it */
_Static_assert(ROUTE_BYTES + sizeof(struct hello) <= SLOT_BYTES, "a datagram fits its slot");

/* One has come: whose it is not known yet. */
void hello_hear(struct fabric *fabric, const struct hello *hello);
