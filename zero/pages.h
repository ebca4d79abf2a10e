/* Memory whose pages come and go while its addresses stay: what points into it needs not be told. Closed, it takes no
 * memory, and reads as numbers that are none (NaN in every floating-point type), so that nobody takes it for values. */
#pragma once
#include "include/tutti.h"

struct pages { int file; size_t file_bytes; };          /* what closed memory shows, again and again */
/* largest: of the pieces reserved from it, in bytes. pages_finish is due in every case. */
tutti_status pages_init(struct pages *pages, size_t largest);
void pages_finish(struct pages *pages);
/* bytes: whole pages. Closed. */
tutti_status pages_reserve(const struct pages *pages, size_t bytes, void **out);
void pages_release(void *at, size_t bytes);
tutti_status pages_open(void *at, size_t bytes);        /* zeros */
tutti_status pages_close(const struct pages *pages, void *at, size_t bytes);
