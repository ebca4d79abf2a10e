/* A new fabric is a row here. */
#include "backend/transports/fabrics.h"
#include "backend/transports/tcp/tcp.h"
#include "backend/transports/ucx/ucx.h"
#include "backend/transports/verbs/verbs.h"
#include <string.h>

static struct fabric *const all[] = { &ucx_fabric, &verbs_fabric, &tcp_fabric };
enum { COUNT = sizeof all / sizeof *all };

struct fabric *fabric_at(int number) { return number >= 0 && number < COUNT ? all[number] : NULL; }
const char *fabric_name(int number)
{
    const struct fabric *fabric = fabric_at(number);
    return fabric ? fabric->operations->name : NULL;
}
int fabric_number(const char *name)
{
    for (int i = 0; i < COUNT; i++)
        if (!*name || strcmp(fabric_name(i), name) == 0) return i;
    return FABRIC_UNKNOWN;
}
