/* The datagrams of the handshake, by which two processes learn each other's queue pairs. */
#pragma once
#include "backend/transports/verbs/nic.h"
#include <stddef.h>

#define HELLO_MAGIC "tutti 3"
/* CONNECTING asks for an answer. OPEN means that the sender's endpoint is open, so the HELLO needs no answer.
   ENDPOINT_CLOSED reports that the sender has closed its endpoint. */
enum handshake_stage { CONNECTING, OPEN, ENDPOINT_CLOSED };
/* `address` is the address of the sender's process. `receiver_turn` is the turn of the receiver's endpoint, or 0 while
   the sender does not know it. `ring` and `ring_key` are the address and the key of the sender's eager ring. `psn` is
   the packet sequence number at which the sender's queue pairs begin, and `stage` an enum handshake_stage. `lanes` are
   the addresses of the sender's queue pairs. The proof covers all bytes before it. */
struct hello {
    char magic[8];
    struct fabric_handshake handshake;
    struct verbs_address address;
    uint64_t receiver_turn;
    uint64_t ring;
    uint32_t ring_key, psn;
    uint32_t stage;
    uint32_t lane_count;
    struct verbs_address lanes[RAILS_MOST];
    unsigned char proof[PROOF_BYTES];
};
enum { PROVED_BYTES = offsetof(struct hello, proof) };
_Static_assert(ROUTE_BYTES + sizeof(struct hello) <= SLOT_BYTES, "a datagram fits its slot");

/* Checks a received HELLO and handles it: creates, connects, opens or fails the endpoint to its sender. An invalid
   HELLO is ignored. */
void verbs_handle_hello(struct fabric *fabric, const struct hello *hello);
