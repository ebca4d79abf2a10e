/* Memory that all ranks of a host map, and that their devices write and await: positions of streams, and what hosts
 * declare about their operations. A word is 32 bits, because all devices can await those. */
#pragma once
#include "backend/base/status.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* The numbers of a rank's words. WORD_ARRIVAL has arrivals, and positions in operations of one tile; WORD_SLOTS and
   those after it have positions of the tiles in each slot. WORD_DONE has the number of operations that are done. */
enum { STREAM_SLOTS = 8, WORD_ARRIVAL = 0, WORD_SLOTS = 1, WORD_DONE = WORD_SLOTS + STREAM_SLOTS, STREAM_WORDS };
/* The most operations that a rank has enqueued and not seen to be done and declared by all ranks. */
enum { STREAM_OPERATIONS = 256 };
/* The most operations from the first one that a rank has not seen to be declared by all ranks to one whose counts agree
   in pairs. */
enum { STREAM_PAIRED = 64 };

/* A rank's declaration of an operation. `number` counts from 1; 0: empty. */
struct stream_declaration { _Atomic uint64_t number, fingerprint; };
/* The words of one rank, which only its device writes, unless the group has failed, and what its host publishes. The
   words that peers await, the one that the host reads, and those of the host have lines of their own. */
struct stream_line {
    _Atomic uint32_t position[WORD_DONE] __attribute__((aligned(128)));
    _Atomic uint32_t done __attribute__((aligned(128)));
    /* The number of the last operation, which WORD_DONE reaches when the rank is idle. */
    _Atomic uint32_t enqueued __attribute__((aligned(128)));
    /* 1: the rank uses the slots of its peers no more. */
    _Atomic uint32_t disconnected;
    /* Operation n has entry n % STREAM_OPERATIONS. */
    struct stream_declaration declared[STREAM_OPERATIONS];
};
/* The bytes that a rank sends to a peer, and those that it expects from it. */
struct stream_pair { _Atomic uint64_t sent, expected; };
/* A rank's counts of an operation that agree in pairs, by peer. `number` as in a declaration. */
struct stream_counts {
    _Atomic uint64_t number;
    struct stream_pair with[];
};
/* The memory begins zeroed. After the lines it has, for each rank, the counts of STREAM_PAIRED operations. */
struct stream_words {
    /* The first failure of the group, or 0 (release.c). */
    _Atomic uint64_t failure __attribute__((aligned(128)));
    struct stream_line rank[];
};
static inline size_t stream_counts_bytes(int ranks)
{
    return sizeof(struct stream_counts) + (size_t)ranks * sizeof(struct stream_pair);
}
/* Returns the bytes that the words of so many ranks take, in whole pages. */
static inline size_t stream_words_count_bytes(int ranks)
{
    enum { PAGE = 4096 };
    size_t bytes = sizeof(struct stream_words)
        + (size_t)ranks * (sizeof(struct stream_line) + STREAM_PAIRED * stream_counts_bytes(ranks));
    return (bytes + PAGE - 1) / PAGE * PAGE;
}
/* Returns the counts of an operation that a rank declares. */
static inline struct stream_counts *stream_words_counts(struct stream_words *words, int ranks, int rank,
    uint64_t number)
{
    size_t entry = (size_t)rank * STREAM_PAIRED + number % STREAM_PAIRED;
    unsigned char *counts = (unsigned char *)&words->rank[ranks];
    return (struct stream_counts *)(void *)(counts + entry * stream_counts_bytes(ranks));
}
/* Returns the offset of a word in the memory. */
static inline size_t stream_words_offset_of(int rank, int word)
{
    size_t line = sizeof(struct stream_words) + (size_t)rank * sizeof(struct stream_line);
    return line + (word == WORD_DONE ? offsetof(struct stream_line, done) : (size_t)word * sizeof(uint32_t));
}
static inline void stream_words_set_disconnected(struct stream_words *words, int rank)
{
    atomic_store(&words->rank[rank].disconnected, 1);
}
static inline bool stream_words_is_disconnected(const struct stream_words *words, int rank)
{
    return atomic_load(&words->rank[rank].disconnected);
}
