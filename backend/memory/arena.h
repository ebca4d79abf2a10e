/* Memory of this process for tensors that the other ranks of the host may map: blocks, each a sealed memfd that was
 * allocated in full before it is used. A location in it is named by the number of its block, never used twice by a
 * process, and an offset. Safe for several threads.
 *
 * fork: in the child the parent's blocks are no arena any more. They are mapped privately: what the child writes stays
 * its own, what it reads is what the parent has there at the moment. */
#pragma once
#include "include/tutti.h"

struct location { uint64_t block, offset; };            /* block 0: none */

/* At a multiple of 64; of 64 KiB and more at the beginning of a page, and in whole pages. NO_MEMORY names the bytes. */
tutti_status arena_allocate(size_t bytes, void **out);
/* NULL is fine, and what a child has inherited (nothing happens). INVALID_ARGUMENT: nothing was allocated there. */
tutti_status arena_free(void *at);
/* Where `bytes` bytes from `at` on lie; false: not in the arena, or not all. Takes no lock and no more than some ten
   nanoseconds. */
bool arena_find(const void *at, size_t bytes, struct location *out);
/* The address of a location, or NULL: no such block, or it ends before `bytes` more. As quick. */
void *arena_at(struct location location, uint64_t bytes);
struct arena_block { void *base; size_t bytes; };
struct arena_block arena_block(uint64_t block);         /* all of it; base NULL: no such block (any more). As quick. */
struct arena_extent { int blocks; size_t bytes; };
struct arena_extent arena_extent(void);                 /* what the arena holds, used or not */
/* A wholly free block is kept, of 64 MiB at most, for a program that frees and allocates the same tensor over and over.
   Gives it back; false: there is none. For whoever has been refused memory: try again if true. */
bool arena_give_up_spare(void);
/* mmap of memory that other processes map, too; gives the spare block up before it returns MAP_FAILED. */
void *arena_map(int descriptor, size_t bytes);
/* Registers what is done at fork, once. Whoever calls this module with a lock of its own held calls it before it
   registers its own handlers: then that lock is taken first at fork, too. */
void arena_prepare(void);

/* ---- for peers ---- */
/* A new descriptor of a block, which the caller closes, and its bytes; -1: no such block (any more); else -errno. */
int arena_descriptor(uint64_t block, size_t *bytes);
/* Maps a peer's block and closes the descriptor. Errors are texts about `whose` block ("process 7's"). */
tutti_status arena_attach(int descriptor, uint64_t block, size_t bytes, const char *whose, void **out);
bool arena_is_retired(const void *attached);            /* its owner has given it back */
void arena_detach(void *attached, size_t bytes);
