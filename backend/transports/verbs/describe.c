/* Describes the fabric for `tutti info`. */
#include "backend/transports/verbs/device/device.h"
#include "backend/transports/verbs/verbs.h"
#include <stdio.h>

void verbs_describe(char *out, size_t bytes)
{
    char ports[700];
    const struct device_environment anywhere = { NULL, 0, NULL };
    tutti_status status = verbs_library_load();
    if (status == TUTTI_OK) status = devices_describe(&anywhere, ports, sizeof ports);
    if (status == TUTTI_OK) snprintf(out, bytes, "yes: %s, %s", verbs_library_name(), ports);
    else snprintf(out, bytes, "no: %s", status_detail());
}
