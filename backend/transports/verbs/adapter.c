/* An adapter is a device that this process uses. It has a protection domain, one completion queue for all objects on
   the device, and the registrations of the program's memory. */
#include "backend/transports/verbs/nic.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>

tutti_status device_port_fail_call(const struct device_port *port, const char *what)
{
    int error = errno;
    return status_fail(TUTTI_SYSTEM, "%s has no %s: %s%s", port->name, what, strerror(error),
        error == ENOMEM ? " (often the limit on locked memory: ulimit -l must print unlimited; set it in "
                          "/etc/security/limits.conf, LimitMEMLOCK= of a systemd unit or docker --ulimit memlock=-1)"
                        : "");
}
/* Returns the entries that the completion queue needs for this many lanes. Each work request has an entry, because an
   unsignalled one completes too if it fails. */
static int adapter_completions_needed(const struct adapter *adapter, int lanes)
{
    return adapter->other_completions + lanes * SENDS;
}
/* Makes reads of the descriptor return at once. */
static void descriptor_set_nonblocking(int descriptor)
{
    int flags = fcntl(descriptor, F_GETFL);
    fcntl(descriptor, F_SETFL, flags | O_NONBLOCK);
}
tutti_status adapter_init(struct adapter *adapter, const struct device_port *port, int other_completions, int lanes)
{
    struct ibv_context *context = port->context;
    adapter->port = port;
    adapter->other_completions = other_completions;
    errno = verbs.ibv_query_device(context, &adapter->attributes);
    if (errno) return device_port_fail_call(port, "device attributes");
    adapter->domain = verbs.ibv_alloc_pd(context);
    if (!adapter->domain) return device_port_fail_call(port, "protection domain");
    adapter->channel = verbs.ibv_create_comp_channel(context);
    if (!adapter->channel) return device_port_fail_call(port, "completion channel");
    descriptor_set_nonblocking(adapter->channel->fd);
    descriptor_set_nonblocking(context->async_fd);
    int entries = int_smaller(adapter_completions_needed(adapter, lanes), adapter->attributes.max_cqe);
    adapter->completions = verbs.ibv_create_cq(context, entries, NULL, adapter->channel, 0);
    if (!adapter->completions) return device_port_fail_call(port, "completion queue");
    return registration_cache_create(adapter->domain, (struct registration_limits){ 0, 0 }, &adapter->memory);
}
void adapter_finish(struct adapter *adapter)
{
    registration_cache_destroy(adapter->memory);
    if (adapter->completions) verbs.ibv_destroy_cq(adapter->completions);
    if (adapter->channel) verbs.ibv_destroy_comp_channel(adapter->channel);
    if (adapter->domain) verbs.ibv_dealloc_pd(adapter->domain);
}
tutti_status verbs_adapter_reserve_lane(struct adapter *adapter)
{
    int needed = adapter_completions_needed(adapter, adapter->lane_count + 1),
        needed_for_twice = adapter_completions_needed(adapter, 2 * adapter->lane_count);
    if (needed <= adapter->completions->cqe) return TUTTI_OK;
    if (needed > adapter->attributes.max_cqe)
        return status_fail(TUTTI_SYSTEM,
            "%s has room for %d completions, and %d queue pairs with other processes need %d: TUTTI_TRANSPORT=ucx on "
            "all hosts needs fewer, and so does TUTTI_VERBS_RAILS=1",
            adapter->port->name, adapter->attributes.max_cqe, adapter->lane_count + 1, needed);
    errno = verbs.ibv_resize_cq(adapter->completions, int_smaller(needed_for_twice, adapter->attributes.max_cqe));
    return errno ? device_port_fail_call(adapter->port, "larger completion queue") : TUTTI_OK;
}
