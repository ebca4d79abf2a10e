/* How much memory this process may still get: to ask for more is not refused by the kernel, which would kill somebody
   to make room. */
#pragma once
#include "include/tutti.h"

/* The least of what the machine has left and what its control group and the groups above that may still take, in bytes;
   UINT64_MAX: nobody says. proc, cgroups: where the kernel tells, "/proc" and "/sys/fs/cgroup" but in tests. */
uint64_t memory_available(const char *proc, const char *cgroups);
/* NO_MEMORY, with both figures, when that is less than `bytes` for `what`. */
tutti_status memory_check(size_t bytes, const char *what);
