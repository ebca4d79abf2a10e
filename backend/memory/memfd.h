/* Shared memory as a file without a name, which the kernel frees when its last process dies. Its size is sealed before
   any process maps it, so that no process can make another's access fault by shrinking the file. The bytes of a
   constant one are sealed, too. */
#pragma once
#include "include/tutti.h"

/* Creates a sparse memfd of that size, which is sealed. The text of SYSTEM names the failed call, or the limit. On
   failure *out is a descriptor that the caller closes, or -1. */
tutti_status memfd_create_sealed(size_t bytes, int *out);
/* Allocates the pages of `bytes` bytes from `offset` on. The text of NO_MEMORY names the bytes and their purpose,
   `what`. */
tutti_status memfd_allocate(int descriptor, size_t offset, size_t bytes, const char *what);
/* Frees the pages of `bytes` bytes from `offset` on at once, even if other processes map them; the bytes then read as
   zeros. */
void memfd_discard(int descriptor, size_t offset, size_t bytes);
/* Checks a file that a peer has sent. It fails with SYSTEM if the size is wrong or the seals are missing; the text
   names the owner by `whose`, as in "the group's". */
tutti_status memfd_check(int descriptor, size_t bytes, const char *whose);
/* Creates a memfd with those bytes, which no process can change: its contents and its size are sealed. The text of
   NO_MEMORY names the bytes and their purpose, `what`. On failure *out is -1. */
tutti_status memfd_create_constant(const void *from, size_t bytes, const char *what, int *out);
/* Maps the file of memfd_create_constant that a peer has sent, and sets *out to its `bytes` bytes, which munmap unmaps.
   It fails with SYSTEM, as memfd_check does, if the size is wrong, a seal is missing, or a page is not allocated. So
   reading the bytes cannot fault, and they do not change. */
tutti_status memfd_map_constant(int descriptor, size_t bytes, const char *whose, const void **out);
/* Keeps a mapping out of this process's children and core files, because other ranks write it as well. */
void memory_keep_out_of_children(void *mapped, size_t bytes);
/* Returns the size of a page of memory. */
size_t page_bytes(void);
