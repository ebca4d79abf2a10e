/* Two ranks find out together how a slot is best written so that the other can read it: by ordinary stores or around
   the cache. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PROBE_BYTES = 64 * 1024 };
/* What the two share: a word each, and PROBE_BYTES each of memory that is real. */
struct probe_side { _Atomic uint32_t *turn; unsigned char *slot; };
typedef void copy_function(void *to, const void *from, size_t bytes);
enum probe_result { PROBE_GAVE_UP, PROBE_NO_BETTER, PROBE_BETTER };
/* Called by both at about the same time; takes a few milliseconds, and gives up after 100. Better: writing with
   `stream` and reading what it wrote takes less than three quarters of the time of writing with memcpy and reading
   that. */
enum probe_result probe_streaming(struct probe_side mine, struct probe_side other, copy_function *stream);
