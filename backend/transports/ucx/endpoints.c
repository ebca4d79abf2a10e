/* This file opens, breaks and closes the endpoints, one for each process that this process exchanges messages with.
 *
 * Opening. UCX 1.13 over TCP ends the program by an assertion if a peer dies while one of UCX's own wireup messages
 * waits for a connection. So these messages must never wait. Both sides create their endpoint and retry HELLO over it
 * until UCX sends it at once, which proves that the connection is up. When the process with the smaller nonce has sent
 * its HELLO and received the other's, it sends OPENED, the first message that needs UCX's wireup. All other messages
 * follow OPENED. Each endpoint has a number, and a HELLO names the known numbers of both ends. So the receiver
 * recognizes a late HELLO of an endpoint that has broken since.
 *
 * Closing. The process sends BYE over every open endpoint and waits up to 300 ms for the answers. An answer shows that
 * the last messages have arrived, and that the peer does not take the closed connection for a death. Then the process
 * closes the endpoints by force, which never waits. */
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/random.h"
#include "backend/transports/fabric/fabric_transport.h"
#include "backend/transports/ucx/worker.h"
#include <stdlib.h>
#include <string.h>

enum { BYE_MS = 300 };

/* Returns the endpoint of this fabric that begins with this struct. */
static struct ucx_endpoint *ucx_endpoint_of(struct endpoint *endpoint) { return (struct ucx_endpoint *)endpoint; }
/* Returns the list that an endpoint with this number belongs to. All numbers are odd, so their last bit is left out. */
static struct ucx_endpoint **ucx_endpoint_bucket(uint64_t number)
{
    return &worker.bucket[number / 2 % ENDPOINT_BUCKETS];
}
struct ucx_endpoint *ucx_endpoint_find_by_number(uint64_t number)
{
    struct ucx_endpoint *endpoint = *ucx_endpoint_bucket(number);
    while (endpoint && endpoint->number != number) endpoint = endpoint->next_of_bucket;
    return endpoint && endpoint->ep ? endpoint : NULL;
}
/* UCX calls this function when the connection of `endpoint` breaks. */
static void ucx_on_endpoint_broken(void *endpoint, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep;
    endpoint_mark_broken(&ucx_fabric, endpoint, ucx_status_text(status));
}
/* Writes a new endpoint with a random number to *out, listed nowhere yet. After an error the caller frees *out, which
   may be NULL. */
static tutti_status ucx_endpoint_new(const struct fabric *fabric, const unsigned char process[16], uint64_t life,
    const struct key_id *key, struct ucx_endpoint **out)
{
    struct ucx_endpoint *endpoint = *out = memory_alloc_zeroed(1, sizeof *endpoint);
    if (!endpoint) return status_fail(TUTTI_NO_MEMORY, "no memory for a connection");
    TRY(endpoint_init_identity(fabric, &endpoint->base, process, life, key));
    TRY(random_fill(&endpoint->number, sizeof endpoint->number));
    /* The number 0 stands for an unknown endpoint. */
    endpoint->number |= 1;
    return TUTTI_OK;
}
/* Creates the UCX endpoint to the worker address of a process. */
static tutti_status ucx_endpoint_open(struct ucx_endpoint *endpoint, const unsigned char *address)
{
    const ucp_ep_params_t parameters = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS
            | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = (const ucp_address_t *)(const void *)address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = { .cb = ucx_on_endpoint_broken, .arg = endpoint } };
    ucs_status_t status = ucx.ucp_ep_create(worker.ucp, &parameters, &endpoint->ep);
    if (status == UCS_OK) return TUTTI_OK;
    return status_fail(TUTTI_SYSTEM,
        "UCX cannot connect: %s (both hosts need a network interface in common; see TUTTI_SOCKET_IFNAME and UCX_TLS)",
        ucx_status_text(status));
}
tutti_status ucx_endpoint_create(struct fabric *fabric, const unsigned char process[16], const struct key_id *key,
    const unsigned char *address, size_t bytes, struct endpoint **out)
{
    struct ucx_endpoint *endpoint = NULL;
    uint64_t life;
    if (bytes <= sizeof life) return status_fail(TUTTI_SYSTEM, "its process has published no address of UCX");
    memcpy(&life, address + bytes - sizeof life, sizeof life);
    tutti_status status = ucx_endpoint_new(fabric, process, life, key, &endpoint);
    if (status == TUTTI_OK) status = ucx_endpoint_open(endpoint, address);
    if (status != TUTTI_OK) {
        free(endpoint);
        return status;
    }
    endpoint->next_of_bucket = *ucx_endpoint_bucket(endpoint->number);
    *ucx_endpoint_bucket(endpoint->number) = endpoint;
    endpoint->base.next = fabric->endpoints;
    *out = fabric->endpoints = &endpoint->base;
    fabric->needs_poll = true;
    return TUTTI_OK;
}

/* ---- opening ---- */
/* Sends a notice of this kind to the process, with these flags of UCX. UCX may complete it later. false: the send has
   failed. */
static bool ucx_notice_send(struct fabric *fabric, struct ucx_endpoint *endpoint, enum kind_of_ucx kind, unsigned flags)
{
    struct notice notice;
    size_t bytes = notice_make(fabric, endpoint, kind, &notice);
    struct fabric_op *op = fabric_op_new(fabric, bytes);
    if (!op) return false;
    op->header = notice.header;
    op->endpoint = &endpoint->base;
    op->bytes = bytes;
    memcpy(op->buffer, notice.data, bytes);
    /* The op is listed before it is sent, because it may complete within the call. */
    fabric_op_add(op, &fabric->orphans);
    if (ucx_send_with_flags(op, NULL, UCP_AM_SEND_FLAG_EAGER | flags)) return true;
    fabric_op_remove(op);
    bool is_sent = !op->why;
    if (is_sent) ucx_on_notice_sent(fabric, op);
    fabric_op_free(fabric, op);
    return is_sent;
}
void ucx_on_notice_sent(struct fabric *fabric, const struct fabric_op *op)
{
    (void)fabric;
    if (op->header.kind == OPENED) op->endpoint->is_open |= !op->why;
    /* A BYE that failed gets no answer. */
    if (op->header.kind == BYE) worker.byes_open -= op->why != NULL;
}
/* Sends a notice with `bytes` bytes of data if UCX can complete the send at once. false: it cannot, and has sent no
   byte; or the endpoint is now broken. notice NULL: sends an empty message, which the receiver ignores. */
static bool ucx_notice_send_at_once(struct fabric *fabric, struct ucx_endpoint *endpoint, const struct notice *notice,
    size_t bytes)
{
    const ucp_request_param_t parameters = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL,
        .flags = UCP_AM_SEND_FLAG_EAGER };
    ucs_status_ptr_t request = ucx.ucp_am_send_nbx(endpoint->ep, UCX_MESSAGE_ID, notice ? &notice->header : NULL,
        notice ? sizeof notice->header : 0, notice ? notice->data : NULL, bytes, &parameters);
    if (!request) return true;
    if (UCS_PTR_STATUS(request) != UCS_ERR_NO_RESOURCE)
        endpoint_mark_broken(fabric, &endpoint->base, ucx_status_text(UCS_PTR_STATUS(request)));
    return false;
}
/* Sends HELLO if the connection is up. false: it is not up yet, or has broken. UCX 1.22 completes only empty messages
   at once. It is built without the assertions that the beginning of this file names, so HELLO may be sent there as an
   ordinary message once an empty one has proved that the connection is up. */
static bool ucx_endpoint_send_hello(struct fabric *fabric, struct ucx_endpoint *endpoint)
{
    struct notice notice;
    size_t bytes = notice_make(fabric, endpoint, HELLO, &notice);
    if (ucx_notice_send_at_once(fabric, endpoint, &notice, bytes)) return true;
    if (endpoint_is_broken(&endpoint->base) || !ucx_notice_send_at_once(fabric, endpoint, NULL, 0)) return false;
    return ucx_notice_send(fabric, endpoint, HELLO, 0);
}
/* Sends HELLO unless it was sent. Then, if this process has the smaller nonce and has received the peer's HELLO, sends
   OPENED. */
static void ucx_endpoint_advance_handshake(struct fabric *fabric, struct ucx_endpoint *endpoint)
{
    bool sends_opened = memcmp(fabric->process, endpoint->base.process, sizeof endpoint->base.process) <= 0;
    if (!endpoint->has_sent_hello) endpoint->has_sent_hello = ucx_endpoint_send_hello(fabric, endpoint);
    if (!endpoint->has_sent_hello || !endpoint->peer_number || !sends_opened || endpoint->has_sent_opened) return;
    /* The reply flag makes UCX finish its own wireup with this message. */
    endpoint->has_sent_opened = ucx_notice_send(fabric, endpoint, OPENED, UCP_AM_SEND_FLAG_REPLY);
}
/* Returns the endpoint that a received notice is addressed to, or NULL if no endpoint to the sender has that number. */
static struct ucx_endpoint *ucx_notice_find_endpoint(const struct notice *notice)
{
    struct ucx_endpoint *endpoint = ucx_endpoint_find_by_number(notice->header.bytes);
    return endpoint && memcmp(endpoint->base.process, notice->handshake.from, sizeof endpoint->base.process) == 0
        ? endpoint
        : NULL;
}
/* Handles HELLO, by which the peer reports the number of its endpoint: stores the number, and creates the endpoint of
   this process if it is missing. address_bytes: the length of the peer's address in the notice. */
static void ucx_handle_hello(struct fabric *fabric, const struct notice *notice, size_t address_bytes)
{
    const struct fabric_handshake *handshake = &notice->handshake;
    uint64_t own_number = notice->header.bytes, sender_number = notice->header.id;
    struct endpoint *found = endpoint_find(fabric, handshake->from);
    if (fabric_handshake_is_outdated(fabric, handshake)) return;
    /* The HELLO answers an endpoint of this process that has broken since. */
    if (own_number && (!found || own_number != ucx_endpoint_of(found)->number)) return;
    /* The peer has replaced the endpoint that this process knew. */
    if (found && !own_number && ucx_endpoint_of(found)->peer_number
        && ucx_endpoint_of(found)->peer_number != sender_number) {
        endpoint_mark_broken(fabric, found, ucx_status_text(UCS_ERR_CONNECTION_RESET));
        found = NULL;
    }
    /* If no endpoint can be created, the ranks' own sends to that process report the reason. */
    if (!found
        && ucx_endpoint_create(fabric, handshake->from, &handshake->key, notice->address, address_bytes, &found)
            != TUTTI_OK)
        return;
    ucx_endpoint_of(found)->peer_number = sender_number;
    /* Each endpoint sends one HELLO, so a second one with this turn is a repetition. */
    found->least_turn = handshake->turn + 1;
}
/* Handles OPENED: opens the endpoint that it is addressed to. */
static void ucx_handle_opened(const struct notice *notice)
{
    struct ucx_endpoint *endpoint = ucx_notice_find_endpoint(notice);
    if (endpoint && endpoint->peer_number == notice->header.id) endpoint->base.is_open = true;
}
/* Handles a saved HELLO or OPENED. */
static void ucx_handle_saved_handshake(struct fabric *fabric, const struct saved_msg *msg)
{
    struct notice notice = { .header = msg->header };
    memcpy(notice.data, msg->data, msg->bytes);
    if (msg->header.kind == HELLO) ucx_handle_hello(fabric, &notice, msg->bytes - sizeof notice.handshake);
    else ucx_handle_opened(&notice);
}
/* Returns whether the handshake of the endpoint is still under way. */
static bool ucx_endpoint_is_opening(struct endpoint *endpoint)
{
    return !endpoint->is_open && !endpoint_is_broken(endpoint) && ucx_endpoint_of(endpoint)->ep;
}
void ucx_advance_handshakes(struct fabric *fabric)
{
    fabric->needs_poll = false;
    for (struct saved_msg *msg; (msg = saved_msgs_pop(&worker.handshakes)) != NULL; saved_msg_free(fabric, msg))
        ucx_handle_saved_handshake(fabric, msg);
    for (struct endpoint *endpoint = fabric->endpoints; endpoint; endpoint = endpoint->next) {
        if (ucx_endpoint_is_opening(endpoint)) ucx_endpoint_advance_handshake(fabric, ucx_endpoint_of(endpoint));
        fabric->needs_poll |= ucx_endpoint_is_opening(endpoint);
    }
}

/* ---- received notices ---- */
/* Handles BYE: the peer leaves, and gets BYE_HEARD. */
static void ucx_handle_bye(struct fabric *fabric, const struct notice *notice)
{
    struct ucx_endpoint *endpoint = ucx_notice_find_endpoint(notice);
    if (!endpoint || endpoint_is_broken(&endpoint->base)) return;
    endpoint->base.has_left = true;
    ucx_notice_send(fabric, endpoint, BYE_HEARD, 0);
}
/* Handles BYE_HEARD: the peer has received BYE and all messages before it. */
static void ucx_handle_bye_answer(const struct notice *notice)
{
    struct ucx_endpoint *endpoint = ucx_notice_find_endpoint(notice);
    if (!endpoint || endpoint->has_bye_answer || endpoint_is_broken(&endpoint->base)) return;
    endpoint->has_bye_answer = true;
    worker.byes_open--;
}
/* Saves a HELLO or OPENED for ucx_advance_handshakes, because a callback must not open endpoints. */
static void ucx_save_handshake(struct fabric *fabric, const struct notice *notice, size_t bytes)
{
    struct saved_msg *msg = saved_msg_new(&notice->header, notice->data, bytes, false);
    if (!msg) return;
    saved_msgs_push(&worker.handshakes, msg);
    fabric->needs_poll = true;
}
void ucx_handle_notice(struct fabric *fabric, const struct header *header, const void *data, size_t bytes)
{
    struct notice notice;
    if (!notice_read(fabric, header, data, &bytes, &notice)) return;
    switch ((enum kind_of_ucx)header->kind) {
    case HELLO:
    case OPENED: ucx_save_handshake(fabric, &notice, bytes); return;
    case BYE: ucx_handle_bye(fabric, &notice); return;
    case BYE_HEARD: ucx_handle_bye_answer(&notice); return;
    default: return;
    }
}

/* ---- closing ---- */
void ucx_endpoint_disconnect(struct fabric *fabric, struct endpoint *endpoint)
{
    const ucp_request_param_t parameters = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_EP_CLOSE_FLAG_FORCE };
    struct ucx_endpoint *ucx_endpoint = ucx_endpoint_of(endpoint);
    (void)fabric;
    if (!ucx_endpoint->ep) return;
    ucs_status_ptr_t request = ucx.ucp_ep_close_nbx(ucx_endpoint->ep, &parameters);
    ucx_endpoint->ep = NULL;
    for (int n = 0; UCS_PTR_IS_PTR(request) && n < 1000; n++) {
        if (ucx.ucp_request_check_status(request) != UCS_INPROGRESS) break;
        ucx.ucp_worker_progress(worker.ucp);
    }
    if (UCS_PTR_IS_PTR(request)) ucx.ucp_request_free(request);
}
/* Makes progress, and continues handshakes. If nothing happens, sleeps some microseconds without the lock. */
static void ucx_progress_or_pause(struct fabric *fabric)
{
    if (!ucx.ucp_worker_progress(worker.ucp)) fabric_pause_unlocked(fabric);
    if (fabric->needs_poll) ucx_advance_handshakes(fabric);
}
/* Waits until all endpoints have opened or broken, but not beyond `until_ms`, so that none of UCX's own messages waits
   while the endpoints are closed. */
static void ucx_finish_handshakes(struct fabric *fabric, int64_t until_ms)
{
    while (fabric->needs_poll && clock_ms() < until_ms) ucx_progress_or_pause(fabric);
}
/* Sends BYE over all open endpoints, and waits for the answers, but not beyond `until_ms`. */
static void ucx_exchange_byes(struct fabric *fabric, int64_t until_ms)
{
    worker.byes_open = 0;
    for (struct endpoint *endpoint = fabric->endpoints; endpoint; endpoint = endpoint->next)
        if (endpoint->is_open && !endpoint_is_broken(endpoint))
            worker.byes_open += ucx_notice_send(fabric, ucx_endpoint_of(endpoint), BYE, 0);
    while (worker.byes_open > 0 && clock_ms() < until_ms) ucx_progress_or_pause(fabric);
}
void ucx_endpoints_shutdown(struct fabric *fabric)
{
    int64_t until_ms = clock_ms() + BYE_MS;
    ucx_finish_handshakes(fabric, until_ms);
    ucx_exchange_byes(fabric, until_ms);
    for (struct endpoint *endpoint = fabric->endpoints; endpoint; endpoint = endpoint->next)
        ucx_endpoint_disconnect(fabric, endpoint);
}
void ucx_endpoints_free(struct fabric *fabric)
{
    for (struct endpoint *endpoint; (endpoint = fabric->endpoints) != NULL; free(endpoint))
        fabric->endpoints = endpoint->next;
}
