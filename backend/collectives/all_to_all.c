/* All-to-all: block j of rank i becomes block i of rank j. Blocks of different pairs may differ in size, except in
 * algorithms that forward the blocks of other ranks. n is the message of all p blocks. */
#include "backend/collectives/common.h"

static void copy_own_block(struct schedule *s)
{
    step_copy(s, span_of_chunk(s->rank, OUTPUT, s->rank), span_of_chunk(s->rank, INPUT, s->rank));
}
static void block_send_to_peer(struct schedule *s, int peer)
{
    step_send(s, span_of_chunk(s->rank, INPUT, peer), peer);
}
static void block_recv_from_peer(struct schedule *s, int peer)
{
    step_recv(s, span_of_chunk(s->rank, OUTPUT, peer), peer);
}

/* Pairwise: in round k send to the rank k above, receive from the rank k below, and begin the next round when that
   message has arrived, so that one rank at a time sends to a rank. p - 1 rounds of n/p. (Thakur, Rabenseifner, Gropp
   2005) */
void all_to_all_pairwise(struct schedule *s)
{
    copy_own_block(s);
    for (int hop = 1; hop < s->size; hop++) {
        int from = int_modulo(s->rank - hop, s->size);
        block_send_to_peer(s, int_modulo(s->rank + hop, s->size));
        block_recv_from_peer(s, from);
        /* This copy moves no bytes; it only waits for the message. */
        step_copy(s, span_of_chunk(s->rank, OUTPUT, from), span_of_chunk(s->rank, OUTPUT, from));
    }
}

/* Direct: post all receives, then all sends, and leave the order to the network. 1 latency, p - 1 rounds of n/p. In
   place the receives overwrite blocks that are not sent yet; the builder detects this and copies them first. */
void all_to_all_direct(struct schedule *s)
{
    for (int hop = 1; hop < s->size; hop++) block_recv_from_peer(s, int_modulo(s->rank - hop, s->size));
    for (int hop = 1; hop < s->size; hop++) block_send_to_peer(s, int_modulo(s->rank + hop, s->size));
    copy_own_block(s);
}

/* Returns where a block that travels `hop` ranks in all lies before round `bit`, after the hops of the lower bits. A
   block is received into another place than the block of the same hop is sent from; otherwise all ranks would wait for
   each other. */
static struct span bruck_block_before_round(struct schedule *s, struct span landing, int hop, int bit)
{
    int made = hop & (bit - 1), moves = 0;
    for (int rest = made; rest; rest &= rest - 1) moves++;
    if (made == hop) return span_of_chunk(s->rank, OUTPUT, int_modulo(s->rank - hop, s->size));
    if (moves == 0) return span_of_chunk(s->rank, INPUT, int_modulo(s->rank + hop, s->size));
    return span_part(landing, moves % 2 * s->size + hop, 1);
}
/* Bruck: a block makes its hop in powers of two, and all blocks that share a bit travel in one message. ⌈log2 p⌉ rounds
   of about n/2. For short messages. (Bruck et al. 1997) */
void all_to_all_bruck(struct schedule *s)
{
    struct span landing = span_new_scratch(s, 2 * s->size);
    copy_own_block(s);
    for (int bit = 1; bit < s->size; bit *= 2) {
        step_send(s, bruck_block_before_round(s, landing, bit, bit), int_modulo(s->rank + bit, s->size));
        for (int hop = bit + 1; hop < s->size; hop++)
            if (hop & bit) step_add_span(s, bruck_block_before_round(s, landing, hop, bit));
        step_recv(s, bruck_block_before_round(s, landing, bit, 2 * bit), int_modulo(s->rank - bit, s->size));
        for (int hop = bit + 1; hop < s->size; hop++)
            if (hop & bit) step_add_span(s, bruck_block_before_round(s, landing, hop, 2 * bit));
    }
}

/* ---- on one host ---- */
/* Read: each rank takes its block from all ranks. 1 round; each rank reads (p - 1)/p n. */
void all_to_all_read(struct schedule *s)
{
    for (int hop = 0; hop < s->size; hop++) {
        int peer = int_modulo(s->rank + hop, s->size);
        step_copy(s, span_of_chunk(s->rank, OUTPUT, peer), span_of_chunk(peer, INPUT, s->rank));
    }
}

/* Write: each rank puts the block of each peer into that peer's memory. 1 round; each rank writes (p - 1)/p n. */
void all_to_all_write(struct schedule *s)
{
    for (int hop = 0; hop < s->size; hop++) {
        int peer = int_modulo(s->rank + hop, s->size);
        step_copy(s, span_of_chunk(peer, OUTPUT, s->rank), span_of_chunk(s->rank, INPUT, peer));
    }
}
