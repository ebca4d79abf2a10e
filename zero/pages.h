/* Reserved address ranges get pages (commit) and lose them (decommit) while their addresses stay, so pointers into them
 * stay valid. Decommitted memory takes no pages and reads as NaN in every floating-point type, so that a wrong read is
 * noticed. */
#pragma once
#include "include/tutti.h"
#include <stdbool.h>

/* `file` is a descriptor of a file of NaNs, which decommitted ranges map, several times if they are longer. */
struct pages { int file; size_t file_bytes; };
/* Makes the file of NaNs. largest: the bytes of the largest reservation. The caller must call pages_finish in every
   case. */
tutti_status pages_init(struct pages *pages, size_t largest);
void pages_finish(struct pages *pages);
/* Reserves a decommitted address range and returns it in *out. bytes must be whole pages. */
tutti_status pages_reserve_range(const struct pages *pages, size_t bytes, void **out);
/* Gives the addresses of a range back to the system. NULL is allowed. */
void pages_release_range(void *at, size_t bytes);
/* Gives the range memory of zeros. */
tutti_status pages_commit_range(void *at, size_t bytes);
/* Frees the memory of the range, which then reads as NaN. Its addresses stay. */
tutti_status pages_decommit_range(const struct pages *pages, void *at, size_t bytes);
/* Maps NaNs to the parts of the range that have no mapping. For a forked child. */
void pages_fill_holes(const struct pages *pages, void *at, size_t bytes);

/* ---- shared memory (tutti_mem_alloc) at a second address ---- */
/* tutti_mem_alloc gives this many bytes or more whole pages. */
enum { WHOLE_PAGES_BYTES = 64 << 10 };
/* Returns true if the kernel can move the pages of shared memory to other addresses as pages_move_range does: Linux
   from 5.13 on, with pages of 4 KiB. */
bool pages_can_move(void);
/* Maps the shared memory at `memory`, whole pages, a second time, and returns the new address in *out. Pages move
   fastest between this alias and the addresses at `target`. A forked child does not have the alias.
   pages_release_range releases it. */
tutti_status pages_alias_range(void *memory, size_t bytes, const void *target, void **out);
/* Moves the entries of the page table from one address range to the other, which needs no page fault and no copy. Both
   ranges then map the shared memory `memory`, as `from` did before; accesses through `from` fault it in again. If the
   kernel refuses, `to` maps the memory without entries. */
tutti_status pages_move_range(void *memory, void *from, void *to, size_t bytes);
