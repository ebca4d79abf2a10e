/* This file replaces all others of this folder where tutti is built without the headers of libibverbs. */
#include "backend/base/status.h"
#include "backend/transports/verbs/verbs.h"
#include <stdio.h>

/* The text that libibverbs is missing, and what to do. */
static const char how[] =
    "this tutti was built without libibverbs, which the transport verbs needs: install its headers "
    "(apt-get install libibverbs-dev) and build tutti again";
static tutti_status verbs_absent_start(struct fabric *fabric, const struct fabric_environment *environment)
{
    (void)fabric, (void)environment;
    return status_fail(TUTTI_UNSUPPORTED, "%s", how);
}
static void verbs_absent_ignore(struct fabric *fabric) { (void)fabric; }
const struct fabric_operations verbs_operations = {
    .name = "verbs", .start = verbs_absent_start, .shutdown = verbs_absent_ignore, .finish = verbs_absent_ignore
};
struct fabric verbs_fabric = FABRIC(&verbs_operations);
void verbs_describe(char *out, size_t bytes) { snprintf(out, bytes, "no: %s", how); }
