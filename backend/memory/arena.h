/* Memory of this process for tensors that the other ranks of the host may map. It consists of blocks, each a sealed
 * memfd that is allocated in full before it is used. A location is the number of its block, which the process uses
 * only once, and an offset. Any number of threads may call the functions.
 *
 * After fork the child maps its parent's blocks privately, and they are no longer part of its arena. The parent does
 * not see the child's writes; the child reads the current data of the parent. */
#pragma once
#include "include/tutti.h"

/* Block 0 stands for no location. */
struct location { uint64_t block, offset; };

/* Allocates memory at a multiple of 64 bytes; 64 KiB or more begin on a page and take whole pages. The text of
   NO_MEMORY names the bytes. */
tutti_status arena_allocate(size_t bytes, void **out);
/* Frees an allocation; NULL and memory that a child has inherited are ignored. INVALID_ARGUMENT means that the arena
   did not allocate it, or that it is already free. */
tutti_status arena_free(void *at);
/* Finds the location of `bytes` bytes from `at` on; returns false if they are not all in one block. It takes no lock
   and about ten nanoseconds, as do the next two functions. */
bool arena_find(const void *at, size_t bytes, struct location *out);
/* Returns the address of a location, or NULL if the block does not exist or has fewer than `bytes` bytes from there. */
void *arena_location_address(struct location location, uint64_t bytes);
/* The mapping of one block: its base, and its bytes with the header. */
struct arena_block { void *base; size_t bytes; };
/* Returns the block with that number; the base is NULL if the block does not exist. */
struct arena_block arena_block(uint64_t number);
struct arena_size { int blocks; size_t bytes; };
/* Returns the number and the bytes of all blocks, used or free. */
struct arena_size arena_get_size(void);
/* Frees the spare block; returns false if the arena has none. The spare is a wholly free block of at most 64 MiB,
   kept for a program that frees and allocates the same tensor repeatedly. A caller whose allocation failed tries again
   after true. */
bool arena_give_up_spare(void);
/* Maps a file of `bytes` bytes that other processes also map. The mapping is no part of the arena. If memory is short,
   it first frees the spare block; it returns MAP_FAILED if that does not suffice. */
void *shared_file_map(int descriptor, size_t bytes);
/* Registers the arena's fork handlers once. A module that calls the arena with its own lock held calls this before it
   registers its own handlers. Then fork takes that module's lock first as well. */
void arena_prepare(void);

/* ---- for peers ---- */
/* Returns a new descriptor of a block, which the caller closes, and sets *bytes to the bytes of the block. Returns -1
   if the block does not exist, or -errno if the descriptor cannot be copied. */
int arena_copy_descriptor(uint64_t number, size_t *bytes);
/* Maps a peer's block, which has that number and `bytes` bytes, and closes the descriptor in any case. *out is the
   address. Error texts name the owner by `whose`, as in "process 7's". */
tutti_status arena_attach(int descriptor, uint64_t number, size_t bytes, const char *whose, void **out);
/* Returns true if the owner of the block has given it back. */
bool arena_block_is_retired(const void *attached);
/* Unmaps a peer's block. */
void arena_detach(void *attached, size_t bytes);
