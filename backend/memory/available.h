/* Reports how much memory this process may still get. The kernel does not refuse larger requests, but kills a process
   to free memory. */
#pragma once
#include "include/tutti.h"

/* Returns the free bytes: the smallest of what the machine has left and what each control group of this process may
   still take; UINT64_MAX if they are unknown. `proc` and `cgroups` are the folders to read, "/proc" and
   "/sys/fs/cgroup" outside of tests. */
uint64_t memory_available_bytes(const char *proc, const char *cgroups);
/* Fails with NO_MEMORY and both numbers if fewer than `bytes` are available for `what`. */
tutti_status memory_check(size_t bytes, const char *what);
