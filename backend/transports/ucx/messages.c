/* The fabric sends its messages as active messages of UCX: eager with their bytes, or announced by UCX's rendezvous. */
#include "backend/transports/ucx/worker.h"
#include <stddef.h>
#include <string.h>

enum { HEADER_BYTES = sizeof(struct header) + sizeof(uint64_t) };
_Static_assert(offsetof(struct fabric_op, connection_number) == sizeof(struct header),
    "the connection number follows the header");

/* Completes an op by the result of its request, and frees the request. */
static void ucx_request_complete(void *request, struct fabric_op *op, ucs_status_t status)
{
    ucx.ucp_request_free(request);
    op->why = status == UCS_OK ? NULL : ucx_status_text(status);
    if (!op->owner && op->endpoint) ucx_on_notice_sent(&ucx_fabric, op);
    fabric_op_complete(&ucx_fabric, op, op->why);
}
static void ucx_on_send_complete(void *request, ucs_status_t status, void *op)
{
    ucx_request_complete(request, op, status);
}
static void ucx_on_fetch_complete(void *request, ucs_status_t status, size_t bytes, void *op)
{
    (void)bytes;
    ucx_request_complete(request, op, status);
}
/* Records the outcome of posting the request of an op. Returns true if the op is in flight; its callback then completes
   the op. UCX may have run the callback already, if it found the sender's connection closed. Returns false if the op
   has completed: op->why has the result, and an error marks the endpoint broken. */
static bool ucx_op_record_request(struct fabric_op *op, ucs_status_ptr_t request)
{
    if (UCS_PTR_IS_PTR(request)) return true;
    op->why = UCS_PTR_STATUS(request) == UCS_OK ? NULL : ucx_status_text(UCS_PTR_STATUS(request));
    if (op->why && op->endpoint) endpoint_mark_broken(&ucx_fabric, op->endpoint, op->why);
    return false;
}
bool ucx_send_with_flags(struct fabric_op *op, const void *data, unsigned flags)
{
    const ucp_request_param_t parameters = { .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA
            | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = flags,
        .cb.send = ucx_on_send_complete,
        .user_data = op };
    const struct ucx_endpoint *endpoint = (const struct ucx_endpoint *)op->endpoint;
    return ucx_op_record_request(op,
        ucx.ucp_am_send_nbx(endpoint->ep, UCX_MESSAGE_ID, &op->header, HEADER_BYTES, data ? data : op->buffer,
            op->bytes, &parameters));
}
bool ucx_send(struct fabric *fabric, struct fabric_op *op, const void *data, bool is_announced)
{
    (void)fabric;
    op->connection_number = ((const struct ucx_endpoint *)op->endpoint)->peer_number;
    return ucx_send_with_flags(op, data, is_announced ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER);
}
bool ucx_fetch(struct fabric *fabric, struct fabric_op *op, void *descriptor, void *buffer)
{
    const ucp_request_param_t parameters = { .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.recv_am = ucx_on_fetch_complete,
        .user_data = op };
    void *to = buffer ? buffer : op->buffer;
    (void)fabric;
    return ucx_op_record_request(op, ucx.ucp_am_recv_data_nbx(worker.ucp, descriptor, to, op->bytes, &parameters));
}
void ucx_release(struct fabric *fabric, void *descriptor)
{
    (void)fabric;
    ucx.ucp_am_data_release(worker.ucp, descriptor);
}
ucs_status_t ucx_on_message(void *unused, const void *header, size_t header_bytes, void *data, size_t bytes,
    const ucp_am_recv_param_t *parameters)
{
    struct {
        struct header header;
        uint64_t connection;
    } received = { .connection = 0 };
    bool is_announced = parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
    (void)unused;
    /* HELLO may come without a connection number, because ucx_notice_send_at_once sends the header alone. */
    if (header_bytes != sizeof received.header && header_bytes != sizeof received) return UCS_OK;
    memcpy(&received, header, header_bytes);
    if (received.header.kind >= KIND_OF_FABRIC) {
        ucx_handle_notice(&ucx_fabric, &received.header, data, is_announced ? 0 : bytes);
        return UCS_OK;
    }
    struct ucx_endpoint *from = ucx_endpoint_find_by_number(received.connection);
    bool is_kept = from && fabric_handle_message(&ucx_fabric, &from->base, &received.header, data, bytes, is_announced);
    return is_kept ? UCS_INPROGRESS : UCS_OK;
}
