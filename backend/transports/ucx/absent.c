/* In the place of all other files of this folder where tutti is built without the headers of UCX. */
#include "backend/base/status.h"
#include "backend/transports/ucx/ucx.h"
#include <stdio.h>

static const char how[] = "this tutti was built without UCX, which messages between hosts need: install its headers "
                          "(apt-get install libucx-dev) and build tutti again";
tutti_status ucx_open(const unsigned char process[16], const char *device, bool pretended, void *card, size_t *bytes)
{
    (void)process, (void)device, (void)pretended, (void)card, (void)bytes;
    return status_fail(TUTTI_UNSUPPORTED, "%s", how);
}
void ucx_close(void) {}
tutti_status ucx_connect(struct router *router, const struct ucx_ground *ground)
{
    (void)router, (void)ground;
    return status_fail(TUTTI_UNSUPPORTED, "%s", how);
}
void ucx_describe(char *out, size_t bytes) { snprintf(out, bytes, "no: %s", how); }
