/* Memory as a file without a name, so that nothing is left behind whoever dies. Its size is sealed before anybody maps
   it: no process can make another's access fault by shrinking the file. */
#pragma once
#include "include/tutti.h"

/* A sparse memfd of that size. SYSTEM names the call that was refused, or the limit. On failure *out is a descriptor to
   close, or -1. */
tutti_status memfd_create_sealed(size_t bytes, int *out);
/* Makes `bytes` from `offset` on real. NO_MEMORY names the bytes and what they were for. */
tutti_status memfd_allocate(int descriptor, size_t offset, size_t bytes, const char *what);
/* Gives the memory back at once, whoever has it mapped; the bytes read as zeros from then on. */
void memfd_discard(int descriptor, size_t offset, size_t bytes);
/* SYSTEM when what a peer has sent has not this size, or is not sealed; `whose`: "the group's", say. */
tutti_status memfd_check(int descriptor, size_t bytes, const char *whose);
/* What other ranks write, too, is no part of this process alone: neither its children nor its core file get it. */
void memfd_keep_out(void *mapped, size_t bytes);
size_t page_bytes(void);
