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
/* The memory begins zeroed. */
struct stream_words {
    /* The first failure of the group, or 0 (release.c). */
    _Atomic uint64_t failure __attribute__((aligned(128)));
    struct stream_line rank[];
};
/* Returns the bytes that the words of so many ranks take, in whole pages. */
static inline size_t stream_words_count_bytes(int ranks)
{
    enum { PAGE = 4096 };
    return (sizeof(struct stream_words) + (size_t)ranks * sizeof(struct stream_line) + PAGE - 1) / PAGE * PAGE;
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
