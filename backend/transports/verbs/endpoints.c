/* Creates, fails and destroys endpoints, one for each process that this process exchanges messages with. A failed
 * endpoint stays without its queues until the fabric ends, because messages that came by it may still be pending. */
#include "backend/base/memory.h"
#include "backend/transports/verbs/nic.h"
#include <stdlib.h>
#include <string.h>

static void verbs_endpoint_destroy(struct nic *nic, struct verbs_endpoint *e)
{
    lanes_destroy(nic, e);
    if (e->address_handle) verbs.ibv_destroy_ah(e->address_handle);
    if (e->ring.in_region) verbs.ibv_dereg_mr(e->ring.in_region);
    if (e->ring.out_region) verbs.ibv_dereg_mr(e->ring.out_region);
    free(e->ring.in);
    free(e->ring.out);
    free(e);
}
tutti_status verbs_endpoint_create(struct fabric *fabric, const unsigned char process[16], const struct key_id *key,
    const struct verbs_address *address, struct verbs_endpoint **out)
{
    struct nic *nic = nic_of_fabric(fabric);
    struct verbs_endpoint *e = memory_alloc_zeroed(1, sizeof *e);
    if (!e) return status_fail(TUTTI_NO_MEMORY, "no memory for a connection");
    e->address = *address;
    tutti_status status = endpoint_init_identity(fabric, &e->base, process, address->life, key);
    if (status == TUTTI_OK) status = lanes_create(nic, e);
    if (status == TUTTI_OK) status = verbs_endpoint_create_ah(nic, e);
    if (status != TUTTI_OK) {
        verbs_endpoint_destroy(nic, e);
        return status;
    }
    e->base.next = fabric->endpoints;
    fabric->endpoints = &e->base;
    fabric->needs_poll = true;
    *out = e;
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
    struct verbs_endpoint *e = NULL;
    struct verbs_address theirs;
    if (bytes != sizeof theirs)
        return status_fail(TUTTI_SYSTEM,
            "its process has published no address of an RDMA device (TUTTI_TRANSPORT must name verbs on all hosts)");
    memcpy(&theirs, address, sizeof theirs);
    if (theirs.ethernet != nic_message_port(nic_of_fabric(fabric))->ethernet)
        return verbs_fail_link_layers(nic_of_fabric(fabric));
    TRY(verbs_endpoint_create(fabric, process, key, &theirs, &e));
    *out = &e->base;
    return TUTTI_OK;
}

/* ---- closing ---- */
/* The queues are destroyed before the xfers complete, so the device no longer accesses their memory, in either
   direction. */
void verbs_endpoint_fail(struct fabric *fabric, struct verbs_endpoint *e, const char *why)
{
    endpoint_mark_broken(fabric, &e->base, why);
    lanes_destroy(nic_of_fabric(fabric), e);
    verbs_endpoint_complete_all(fabric, e, why);
}
/* Every pending message that came by an endpoint must have been released before. */
void verbs_endpoints_destroy(struct fabric *fabric)
{
    for (struct endpoint *e; (e = fabric->endpoints) != NULL;) {
        fabric->endpoints = e->next;
        verbs_endpoint_destroy(nic_of_fabric(fabric), verbs_endpoint_of(e));
    }
}
