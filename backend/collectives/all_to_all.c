/* All-to-all: block j of rank i becomes block i of rank j. Blocks of different pairs may differ in size, except in
 * algorithms that forward the blocks of other ranks. n is the message of all p blocks. */
#include "backend/collectives/common.h"

/* Records a copy of this rank's own block from INPUT to its place in OUTPUT. */
static void copy_own_block(struct schedule *schedule)
{
    step_copy(schedule, span_of_chunk(schedule->rank, OUTPUT, schedule->rank),
        span_of_chunk(schedule->rank, INPUT, schedule->rank));
}
/* Records that the peer's block is sent to it, or that the block from the peer is received into its place. */
static void block_send_to_peer(struct schedule *schedule, int peer)
{
    step_send(schedule, span_of_chunk(schedule->rank, INPUT, peer), peer);
}
static void block_recv_from_peer(struct schedule *schedule, int peer)
{
    step_recv(schedule, span_of_chunk(schedule->rank, OUTPUT, peer), peer);
}

/* Pairwise: in round k send to the rank k above, receive from the rank k below, and begin the next round when that
   message has arrived, so that one rank at a time sends to a rank. p - 1 rounds of n/p. (Thakur, Rabenseifner, Gropp
   2005) */
void all_to_all_pairwise(struct schedule *schedule)
{
    copy_own_block(schedule);
    for (int hop = 1; hop < schedule->size; hop++) {
        int from = int_modulo(schedule->rank - hop, schedule->size);
        block_send_to_peer(schedule, int_modulo(schedule->rank + hop, schedule->size));
        block_recv_from_peer(schedule, from);
        /* This copy moves no bytes; it only waits for the message. */
        step_copy(schedule, span_of_chunk(schedule->rank, OUTPUT, from), span_of_chunk(schedule->rank, OUTPUT, from));
    }
}

/* Direct: post all receives, then all sends, and leave the order to the network. 1 latency, p - 1 rounds of n/p. In
   place the receives overwrite blocks that are not sent yet; the builder detects this and copies them first. */
void all_to_all_direct(struct schedule *schedule)
{
    for (int hop = 1; hop < schedule->size; hop++)
        block_recv_from_peer(schedule, int_modulo(schedule->rank - hop, schedule->size));
    for (int hop = 1; hop < schedule->size; hop++)
        block_send_to_peer(schedule, int_modulo(schedule->rank + hop, schedule->size));
    copy_own_block(schedule);
}

/* Returns where this rank has, before the round of `bit`, the block that travels `hop` ranks in all and has made the
   moves of the lower bits of `hop`. `blocks`: two sets of SCRATCH blocks, which take turns, because a block received
   into the place that the same round sends from would make all ranks wait for each other. */
static struct span bruck_block_before_round(struct schedule *schedule, struct span blocks, int hop, int bit)
{
    int travelled = hop & (bit - 1), moves = 0;
    for (int rest = travelled; rest; rest &= rest - 1) moves++;
    if (travelled == hop)
        return span_of_chunk(schedule->rank, OUTPUT, int_modulo(schedule->rank - hop, schedule->size));
    if (moves == 0) return span_of_chunk(schedule->rank, INPUT, int_modulo(schedule->rank + hop, schedule->size));
    return span_part(blocks, moves % 2 * schedule->size + hop, 1);
}
/* Bruck: a block makes its hop in powers of two, and all blocks that share a bit travel in one message. ⌈log2 p⌉ rounds
   of about n/2. For short messages. (Bruck et al. 1997) */
void all_to_all_bruck(struct schedule *schedule)
{
    struct span blocks = span_new_scratch(schedule, 2 * schedule->size);
    copy_own_block(schedule);
    for (int bit = 1; bit < schedule->size; bit *= 2) {
        step_send(schedule, bruck_block_before_round(schedule, blocks, bit, bit),
            int_modulo(schedule->rank + bit, schedule->size));
        for (int hop = bit + 1; hop < schedule->size; hop++)
            if (hop & bit) step_add_span(schedule, bruck_block_before_round(schedule, blocks, hop, bit));
        step_recv(schedule, bruck_block_before_round(schedule, blocks, bit, 2 * bit),
            int_modulo(schedule->rank - bit, schedule->size));
        for (int hop = bit + 1; hop < schedule->size; hop++)
            if (hop & bit) step_add_span(schedule, bruck_block_before_round(schedule, blocks, hop, 2 * bit));
    }
}

/* ---- on one host ---- */
/* Read: each rank takes its block from all ranks. 1 round; each rank reads (p - 1)/p n. */
void all_to_all_read(struct schedule *schedule)
{
    for (int hop = 0; hop < schedule->size; hop++) {
        int peer = int_modulo(schedule->rank + hop, schedule->size);
        step_copy(schedule, span_of_chunk(schedule->rank, OUTPUT, peer), span_of_chunk(peer, INPUT, schedule->rank));
    }
}

/* Write: each rank puts the block of each peer into that peer's memory. 1 round; each rank writes (p - 1)/p n. */
void all_to_all_write(struct schedule *schedule)
{
    for (int hop = 0; hop < schedule->size; hop++) {
        int peer = int_modulo(schedule->rank + hop, schedule->size);
        step_copy(schedule, span_of_chunk(peer, OUTPUT, schedule->rank), span_of_chunk(schedule->rank, INPUT, peer));
    }
}
