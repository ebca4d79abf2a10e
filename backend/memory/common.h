/* Memory that several processes map alike, where this one has it. All ranks of this process that are to have it enter,
 * by a token that names it; one maps it; it goes with the last that leaves. fork: a child has none of it. Safe for
 * several threads. */
#pragma once
#include "include/tutti.h"

struct common;
tutti_status common_enter(const unsigned char token[16], struct common **out);
/* All of the descriptor. NO_MEMORY. */
tutti_status common_map(struct common *common, int descriptor, size_t bytes);
void *common_base(struct common *common);               /* NULL: nobody has mapped it */
void common_leave(struct common *common);               /* NULL is fine */
bool common_leave_at(void *base);                       /* the same; false: nothing is mapped there */
