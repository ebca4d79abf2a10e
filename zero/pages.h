/* The pages of this memory come and go while its addresses stay, so pointers into it stay valid. Closed memory takes no
 * pages and reads as NaN in every floating-point type, so that a wrong read is noticed. */
#pragma once
#include "include/tutti.h"

/* `file` holds the NaNs that closed memory shows repeatedly. */
struct pages { int file; size_t file_bytes; };
/* largest: the bytes of the largest reservation. The caller must call pages_finish in every case. */
tutti_status pages_init(struct pages *pages, size_t largest);
void pages_finish(struct pages *pages);
/* Reserves closed memory. bytes must be whole pages. */
tutti_status pages_reserve_range(const struct pages *pages, size_t bytes, void **out);
void pages_release_range(void *at, size_t bytes);
/* Gives the memory pages of zeros. */
tutti_status pages_commit_range(void *at, size_t bytes);
tutti_status pages_decommit_range(const struct pages *pages, void *at, size_t bytes);
