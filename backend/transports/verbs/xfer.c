/* The life of an xfer: it is created for an op, its memory is registered while devices may access it, it moves between
 * the lists of its endpoint, and its completion completes the op. */
#include "backend/base/memory.h"
#include "backend/transports/verbs/nic.h"
#include <stdlib.h>

void xfer_list_append(struct verbs_xfer **list, struct verbs_xfer *xfer)
{
    while (*list) list = &(*list)->next;
    xfer->next = NULL;
    *list = xfer;
}
void xfer_list_remove(struct verbs_xfer **list, const struct verbs_xfer *xfer)
{
    while (*list != xfer) list = &(*list)->next;
    *list = xfer->next;
}
struct verbs_xfer *xfer_new(struct fabric_op *op, enum verbs_message_kind kind)
{
    struct verbs_xfer *xfer = memory_alloc_zeroed(1, sizeof *xfer);
    if (!xfer) return NULL;
    xfer->op = op;
    xfer->kind = kind;
    return xfer;
}
/* Gives back the registrations of the xfer's memory. */
static void xfer_unpin(struct nic *nic, struct verbs_xfer *xfer)
{
    for (int i = 0; i < nic->adapter_count; i++)
        if (xfer->memory[i].region) registration_cache_give(nic->adapters[i].memory, &xfer->memory[i]);
}
bool xfer_pin(const struct verbs_endpoint *endpoint, struct verbs_xfer *xfer, const void *at, size_t bytes,
    bool is_written)
{
    for (int i = 0; i < endpoint->lane_count; i++) {
        struct adapter *adapter = endpoint->lanes[i].rail->adapter;
        struct registered *memory = &xfer->memory[adapter->index];
        if (!memory->region && registration_cache_take(adapter->memory, at, bytes, is_written, memory) != TUTTI_OK)
            return false;
        if (!is_written) xfer->offer.keys[i] = memory->region->rkey;
    }
    return true;
}
void xfer_free(struct nic *nic, struct verbs_xfer *xfer)
{
    xfer_unpin(nic, xfer);
    free(xfer);
}
void xfer_complete(struct fabric *fabric, struct verbs_xfer *xfer, const char *why)
{
    struct fabric_op *op = xfer->op;
    xfer_free(nic_of_fabric(fabric), xfer);
    if (op) fabric_op_complete(fabric, op, why);
}
/* Empties the list, and completes each of its xfers for the reason `why`. */
static void xfer_list_complete_all(struct fabric *fabric, struct verbs_xfer **list, const char *why)
{
    for (struct verbs_xfer *xfer; (xfer = *list) != NULL;) {
        *list = xfer->next;
        xfer_complete(fabric, xfer, why);
    }
}
void verbs_endpoint_complete_all(struct fabric *fabric, struct verbs_endpoint *endpoint, const char *why)
{
    xfer_list_complete_all(fabric, &endpoint->waiting, why);
    xfer_list_complete_all(fabric, &endpoint->offered, why);
    xfer_list_complete_all(fabric, &endpoint->reading, why);
    xfer_list_complete_all(fabric, &endpoint->fetching, why);
}
