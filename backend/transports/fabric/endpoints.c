/* The endpoints of a fabric, whichever network it is: how they are found, and how they break. A process that has sent
 * an invalid message is disconnected later, outside of the fabric's progress. */
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/transports/fabric/fabric_transport.h"
#include <stdio.h>
#include <string.h>

struct endpoint *endpoint_find(const struct fabric *fabric, const unsigned char process[16])
{
    struct endpoint *endpoint = fabric->endpoints;
    while (endpoint
        && (endpoint->has_left || endpoint_is_broken(endpoint)
            || memcmp(endpoint->process, process, sizeof endpoint->process) != 0))
        endpoint = endpoint->next;
    return endpoint;
}
/* Rings the bells of all ranks that sleep on the fabric. */
static void fabric_wake_transports(const struct fabric *fabric)
{
    for (struct fabric_transport *transport = fabric->transports; transport; transport = transport->next)
        fabric_transport_wake(transport);
}
void endpoint_mark_broken(struct fabric *fabric, struct endpoint *endpoint, const char *why)
{
    if (endpoint_is_broken(endpoint)) return;
    endpoint->broken_ms = clock_ms();
    endpoint->why = why;
    endpoint->break_number = ++fabric->break_count;
    fabric_wake_transports(fabric);
}
/* Writes a name of the process at the other end, for errors: by its rank in a common group, or by its address. */
static void endpoint_print_process(const struct fabric *fabric, const struct endpoint *endpoint, char *out,
    size_t bytes)
{
    char host[256];
    for (const struct fabric_transport *transport = fabric->transports; transport; transport = transport->next)
        for (int r = 0; r < transport->size; r++) {
            if (memcmp(transport->callbacks.process(transport->callbacks.context, r), endpoint->process,
                    sizeof endpoint->process)
                != 0)
                continue;
            transport->callbacks.name(transport->callbacks.context, r, host, sizeof host);
            snprintf(out, bytes, "the process of rank %d on %s", r, host);
            return;
        }
    if (fabric->operations->print_address) fabric->operations->print_address(endpoint, host, sizeof host);
    else snprintf(host, sizeof host, "an address that is not known");
    snprintf(out, bytes, "a process at %s, which shares no group with this one", host);
}
void endpoint_mark_faulty(struct fabric *fabric, struct endpoint *endpoint, const char *why)
{
    char name[320];
    if (endpoint->is_faulty) return;
    endpoint_print_process(fabric, endpoint, name, sizeof name);
    LOG(WARN, "%s ends its connection with %s: %s", fabric->operations->name, name, why);
    endpoint->is_faulty = endpoint->must_disconnect = fabric->has_faulty = true;
    endpoint_mark_broken(fabric, endpoint, why);
}
bool fabric_disconnect_faulty(struct fabric *fabric)
{
    bool some = fabric->has_faulty;
    fabric->has_faulty = false;
    for (struct endpoint *endpoint = some ? fabric->endpoints : NULL; endpoint; endpoint = endpoint->next) {
        if (!endpoint->must_disconnect) continue;
        endpoint->must_disconnect = false;
        early_msgs_forget(fabric, endpoint);
        fabric->operations->disconnect(fabric, endpoint);
    }
    return some;
}
