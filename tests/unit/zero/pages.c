/* This file replaces zero/pages.c, whose system calls would take most of the time. Decommitted memory is filled with
   NaNs. */
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
tutti_status pages_decommit_range(const struct pages *p, void *at, size_t bytes)
{
    (void)p;
    memset(at, 0xff, bytes);
    return TUTTI_OK;
}
tutti_status pages_commit_range(void *at, size_t bytes)
{
    memset(at, 0, bytes);
    return TUTTI_OK;
}
tutti_status pages_reserve_range(const struct pages *p, size_t bytes, void **out)
{
    *out = aligned_alloc(4096, bytes);
    return *out ? pages_decommit_range(p, *out, bytes) : TUTTI_NO_MEMORY;
}
/* Orders are tried without moved pages. */
bool pages_can_move(void) { return false; }
tutti_status pages_alias_range(void *memory, size_t bytes, const void *target, void **out)
{
    (void)memory, (void)bytes, (void)target, (void)out;
    return TUTTI_UNSUPPORTED;
}
void pages_fill_holes(const struct pages *p, void *at, size_t bytes) { (void)p, (void)at, (void)bytes; }
tutti_status pages_move_range(void *memory, void *from, void *to, size_t bytes)
{
    (void)memory, (void)from, (void)to, (void)bytes;
    return TUTTI_UNSUPPORTED;
}
void pages_release_range(void *at, size_t bytes)
{
    (void)bytes;
    free(at);
}
