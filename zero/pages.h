/* Reserved address ranges get pages (commit) and lose them (decommit) while their addresses stay, so pointers into them
 * stay valid. Decommitted memory takes no pages and reads as NaN in every floating-point type, so that a wrong read is
 * noticed. */
#pragma once
#include "include/tutti.h"

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
