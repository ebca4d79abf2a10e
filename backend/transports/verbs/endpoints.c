/* Creates, fails and destroys endpoints, one for each process that this process exchanges messages with. A failed
 * endpoint stays without its queues until the fabric ends, because messages that came by it may still be pending. */
#include "backend/base/memory.h"
#include "backend/transports/verbs/nic.h"
#include <stdlib.h>
#include <string.h>

/* Destroys and frees an endpoint with its queue pairs and rings, as far as they were created. */
static void verbs_endpoint_destroy(struct nic *nic, struct verbs_endpoint *endpoint)
{
    lanes_destroy(nic, endpoint);
    if (endpoint->address_handle) verbs.ibv_destroy_ah(endpoint->address_handle);
    if (endpoint->ring.in_region) verbs.ibv_dereg_mr(endpoint->ring.in_region);
    if (endpoint->ring.out_region) verbs.ibv_dereg_mr(endpoint->ring.out_region);
    free(endpoint->ring.in);
    free(endpoint->ring.out);
    free(endpoint);
}
tutti_status verbs_endpoint_create(struct fabric *fabric, const unsigned char process[16], const struct key_id *key,
    const struct verbs_address *address, struct verbs_endpoint **out)
{
    struct nic *nic = nic_of_fabric(fabric);
    struct verbs_endpoint *endpoint = memory_alloc_zeroed(1, sizeof *endpoint);
    if (!endpoint) return status_fail(TUTTI_NO_MEMORY, "no memory for a connection");
    endpoint->address = *address;
    tutti_status status = endpoint_init_identity(fabric, &endpoint->base, process, address->life, key);
    if (status == TUTTI_OK) status = lanes_create(nic, endpoint);
    if (status == TUTTI_OK) status = verbs_endpoint_create_ah(nic, endpoint);
    if (status != TUTTI_OK) {
        verbs_endpoint_destroy(nic, endpoint);
        return status;
    }
    endpoint->base.next = fabric->endpoints;
    fabric->endpoints = &endpoint->base;
    fabric->needs_poll = true;
    *out = endpoint;
    return TUTTI_OK;
}
tutti_status verbs_fail_link_layers(const struct nic *nic)
{
    return status_fail(TUTTI_SYSTEM, "one of the two hosts has InfiniBand and the other RoCE (%s here)",
        nic_message_port(nic)->name);
}
tutti_status verbs_connect_process(struct fabric *fabric, const unsigned char process[16], const struct key_id *key,
    const unsigned char *address, size_t bytes, struct endpoint **out)
{
    struct verbs_endpoint *endpoint = NULL;
    struct verbs_address theirs;
    if (bytes != sizeof theirs)
        return status_fail(TUTTI_SYSTEM,
            "its process has published no address of an RDMA device (TUTTI_TRANSPORT must name verbs on all hosts)");
    memcpy(&theirs, address, sizeof theirs);
    if (theirs.is_ethernet != nic_message_port(nic_of_fabric(fabric))->is_ethernet)
        return verbs_fail_link_layers(nic_of_fabric(fabric));
    TRY(verbs_endpoint_create(fabric, process, key, &theirs, &endpoint));
    *out = &endpoint->base;
    return TUTTI_OK;
}

/* ---- closing ---- */
/* The queues are destroyed before the xfers complete, so the device no longer accesses their memory, in either
   direction. */
void verbs_endpoint_fail(struct fabric *fabric, struct verbs_endpoint *endpoint, const char *why)
{
    endpoint_mark_broken(fabric, &endpoint->base, why);
    lanes_destroy(nic_of_fabric(fabric), endpoint);
    verbs_endpoint_complete_all(fabric, endpoint, why);
}
/* Every pending message that came by an endpoint must have been released before. */
void verbs_endpoints_destroy(struct fabric *fabric)
{
    for (struct endpoint *endpoint; (endpoint = fabric->endpoints) != NULL;) {
        fabric->endpoints = endpoint->next;
        verbs_endpoint_destroy(nic_of_fabric(fabric), verbs_endpoint_of(endpoint));
    }
}
