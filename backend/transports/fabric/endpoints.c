/* The endpoints of a fabric, whichever network it is: how they are found, and how they break. A process that has sent
 * an invalid message is disconnected later, outside of the fabric's progress. */
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/transports/fabric/fabric_transport.h"
#include <stdio.h>
#include <string.h>

struct endpoint *endpoint_find(const struct fabric *fabric, const unsigned char process[16])
{
    struct endpoint *e = fabric->endpoints;
    while (e && (e->left || endpoint_is_broken(e) || memcmp(e->process, process, sizeof e->process) != 0)) e = e->next;
    return e;
}
static void fabric_wake_transports(const struct fabric *fabric)
{
    for (struct fabric_transport *p = fabric->transports; p; p = p->next) fabric_transport_wake(p);
}
void endpoint_mark_broken(struct fabric *fabric, struct endpoint *e, const char *why)
{
    if (endpoint_is_broken(e)) return;
    e->broken_ms = clock_ms();
    e->why = why;
    e->broke = ++fabric->breaks;
    fabric_wake_transports(fabric);
}
static void endpoint_print_process(const struct fabric *fabric, const struct endpoint *e, char *out, size_t bytes)
{
    char host[256];
    for (const struct fabric_transport *p = fabric->transports; p; p = p->next)
        for (int r = 0; r < p->size; r++) {
            if (memcmp(p->callbacks.process(p->callbacks.context, r), e->process, sizeof e->process) != 0) continue;
            p->callbacks.name(p->callbacks.context, r, host, sizeof host);
            snprintf(out, bytes, "the process of rank %d on %s", r, host);
            return;
        }
    if (fabric->operations->address) fabric->operations->address(e, host, sizeof host);
    else snprintf(host, sizeof host, "an address that is not known");
    snprintf(out, bytes, "a process at %s (they share no group)", host);
}
void endpoint_mark_faulty(struct fabric *fabric, struct endpoint *e, const char *why)
{
    char name[320];
    if (e->faulty) return;
    endpoint_print_process(fabric, e, name, sizeof name);
    LOG(WARN, "%s ends its connection with %s: %s", fabric->operations->name, name, why);
    e->faulty = e->ends = fabric->faults = true;
    endpoint_mark_broken(fabric, e, why);
}
bool fabric_disconnect_faulty(struct fabric *fabric)
{
    bool some = fabric->faults;
    fabric->faults = false;
    for (struct endpoint *e = some ? fabric->endpoints : NULL; e; e = e->next) {
        if (!e->ends) continue;
        e->ends = false;
        early_msgs_forget(fabric, e);
        fabric->operations->disconnect(fabric, e);
    }
    return some;
}
