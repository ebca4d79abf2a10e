/* This file replaces all others of this folder where tutti is built without the headers of UCX. */
#include "backend/base/status.h"
#include "backend/transports/ucx/ucx.h"
#include <stdio.h>

/* The text that UCX is missing, and what to do. */
static const char how[] = "this tutti was built without UCX, one of the transports between hosts: install its "
                          "headers (apt-get install libucx-dev) and build tutti again, or set TUTTI_TRANSPORT=tcp "
                          "on all ranks";
static tutti_status ucx_absent_start(struct fabric *fabric, const struct fabric_environment *environment)
{
    (void)fabric, (void)environment;
    return status_fail(TUTTI_UNSUPPORTED, "%s", how);
}
static void ucx_absent_ignore(struct fabric *fabric) { (void)fabric; }
static const struct fabric_operations operations = {
    .name = "ucx", .start = ucx_absent_start, .shutdown = ucx_absent_ignore, .finish = ucx_absent_ignore
};
struct fabric ucx_fabric = FABRIC(&operations);
void ucx_describe(char *out, size_t bytes) { snprintf(out, bytes, "no: %s", how); }
