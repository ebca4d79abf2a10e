/* In place of zero/pages.c, whose system calls would take most of the time: memory that is no number while it is
   closed. */
#include "zero/pages.h"
#include <stdlib.h>
#include <string.h>

tutti_status pages_init(struct pages *p, size_t largest)
{
    (void)largest;
    p->file = -1;
    return TUTTI_OK;
}
void pages_finish(struct pages *p) { (void)p; }
tutti_status pages_close(const struct pages *p, void *at, size_t bytes)
{
    (void)p;
    memset(at, 0xff, bytes);
    return TUTTI_OK;
}
tutti_status pages_open(void *at, size_t bytes)
{
    memset(at, 0, bytes);
    return TUTTI_OK;
}
tutti_status pages_reserve(const struct pages *p, size_t bytes, void **out)
{
    *out = aligned_alloc(4096, bytes);
    return *out ? pages_close(p, *out, bytes) : TUTTI_NO_MEMORY;
}
void pages_release(void *at, size_t bytes)
{
    (void)bytes;
    free(at);
}
