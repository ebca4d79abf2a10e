/* An endpoint for each process that this one speaks to: how it is opened, how it breaks, how it is closed.
 *
 * Opening. UCX 1.13 over TCP ends the program by an assertion where a peer dies while one of UCX's own messages, by
 * which two workers learn of each other, waits for a connection. So they never wait: both sides create their endpoint
 * and say HELLO over it, again until UCX has sent it at once, which tells that the connection stands; and when both
 * have heard the other's, the one with the lesser nonce says OPENED, the first message for which UCX's own are needed.
 * Nothing else is sent before. Each endpoint has a number, and a HELLO names those of both ends, as far as they are
 * known: so a late one, of an endpoint that was broken since, is told from the one that counts.
 *
 * Closing. A BYE over every endpoint and a moment for the answers, so that what was sent last has arrived and the end
 * of the connections is not taken for a death; then they are closed by force, which never waits. */
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/random.h"
#include "backend/transports/fabric/port.h"
#include "backend/transports/ucx/worker.h"
#include <stdlib.h>
#include <string.h>

enum { BYE_MS = 300 };

static struct ucx_endpoint *ucx_of(struct endpoint *e) { return (struct ucx_endpoint *)e; }
static struct ucx_endpoint **bucket_of(uint64_t number) { return &worker.bucket[number / 2 % ENDPOINT_BUCKETS]; }
struct ucx_endpoint *ucx_endpoint_numbered(uint64_t number)
{
    struct ucx_endpoint *e = *bucket_of(number);
    while (e && e->number != number) e = e->next_of_bucket;
    return e;
}
static void on_broken(void *endpoint, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep;
    endpoint_mark_broken(&ucx_fabric, endpoint, ucx_status_text(status));
}
static tutti_status endpoint_new(const struct fabric *fabric, const unsigned char process[16], uint64_t life,
    const struct key_id *key, struct ucx_endpoint **out)
{
    struct ucx_endpoint *e = *out = memory_zeroed(1, sizeof *e);
    if (!e) return status_fail(TUTTI_NO_MEMORY, "no memory for a connection");
    TRY(endpoint_introduce(fabric, &e->base, process, life, key));
    TRY(random_fill(&e->number, sizeof e->number));
    e->number |= 1; /* 0 is none */
    return TUTTI_OK;
}
static tutti_status endpoint_open(struct ucx_endpoint *e, const unsigned char *address)
{
    const ucp_ep_params_t parameters = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS
            | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = (const ucp_address_t *)(const void *)address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = { .cb = on_broken, .arg = e } };
    ucs_status_t status = ucx.ucp_ep_create(worker.ucp, &parameters, &e->ep);
    if (status == UCS_OK) return TUTTI_OK;
    return status_fail(TUTTI_SYSTEM,
        "UCX cannot connect: %s (both hosts need a network interface in common; see TUTTI_SOCKET_IFNAME and UCX_TLS)",
        ucx_status_text(status));
}
tutti_status ucx_endpoint_create(struct fabric *fabric, const unsigned char process[16], const struct key_id *key,
    const unsigned char *address, size_t bytes, struct endpoint **out)
{
    struct ucx_endpoint *e = NULL;
    uint64_t life;
    if (bytes <= sizeof life) return status_fail(TUTTI_SYSTEM, "its process has published no address of UCX");
    memcpy(&life, address + bytes - sizeof life, sizeof life);
    tutti_status status = endpoint_new(fabric, process, life, key, &e);
    if (status == TUTTI_OK) status = endpoint_open(e, address);
    if (status != TUTTI_OK) {
        free(e);
        return status;
    }
    e->next_of_bucket = *bucket_of(e->number);
    *bucket_of(e->number) = e;
    e->base.next = fabric->endpoints;
    *out = fabric->endpoints = &e->base;
    fabric->needs_poll = true;
    return TUTTI_OK;
}

/* ---- opening ---- */
/* Sends a notice to the process; UCX may complete it later. false: it failed. */
static bool notice_send(struct fabric *fabric, struct ucx_endpoint *e, enum kind_of_ucx kind, unsigned flags)
{
    struct notice notice;
    size_t bytes = notice_make(fabric, e, kind, &notice);
    struct fabric_op *f = fabric_op_new(fabric, bytes);
    if (!f) return false;
    f->header = notice.header;
    f->endpoint = &e->base;
    f->bytes = bytes;
    memcpy(f->room, notice.data, bytes);
    fabric_op_add(f, &fabric->orphans); /* before: it may complete within */
    if (ucx_send_flags(f, NULL, UCP_AM_SEND_FLAG_EAGER | flags)) return true;
    fabric_op_remove(f);
    bool sent = !f->why;
    if (sent) ucx_said(fabric, f);
    fabric_op_free(fabric, f);
    return sent;
}
void ucx_said(struct fabric *fabric, const struct fabric_op *f)
{
    (void)fabric;
    if (f->header.kind == OPENED) f->endpoint->open |= !f->why;
    if (f->header.kind == BYE) worker.byes_open -= f->why != NULL; /* then nobody answers */
}
/* Now, or not at all. NULL: nothing, which nobody hears. */
static bool send_at_once(struct fabric *fabric, struct ucx_endpoint *e, const struct notice *notice, size_t bytes)
{
    const ucp_request_param_t parameters = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL,
        .flags = UCP_AM_SEND_FLAG_EAGER };
    ucs_status_ptr_t sent = ucx.ucp_am_send_nbx(e->ep, UCX_MESSAGE_ID, notice ? &notice->header : NULL,
        notice ? sizeof notice->header : 0, notice ? notice->data : NULL, bytes, &parameters);
    if (!sent) return true;
    if (UCS_PTR_STATUS(sent) != UCS_ERR_NO_RESOURCE)
        endpoint_mark_broken(fabric, &e->base, ucx_status_text(UCS_PTR_STATUS(sent)));
    return false;
}
/* UCX 1.22 sends nothing at once that has bytes. It is built without those assertions, so there HELLO may go like any
   other message, when an empty one has shown that the connection stands. */
static bool say_hello(struct fabric *fabric, struct ucx_endpoint *e)
{
    struct notice notice;
    size_t bytes = notice_make(fabric, e, HELLO, &notice);
    if (send_at_once(fabric, e, &notice, bytes)) return true;
    if (endpoint_is_broken(&e->base) || !send_at_once(fabric, e, NULL, 0)) return false;
    return notice_send(fabric, e, HELLO, 0);
}
static void endpoint_greet(struct fabric *fabric, struct ucx_endpoint *e)
{
    bool begins = memcmp(fabric->process, e->base.process, sizeof e->base.process) <= 0;
    if (!e->said) e->said = say_hello(fabric, e);
    if (!e->said || !e->theirs || !begins || e->opens) return;
    /* the reply's address is what UCX must agree on */
    e->opens = notice_send(fabric, e, OPENED, UCP_AM_SEND_FLAG_REPLY);
}
/* The endpoint whose number the sender of the notice was given. NULL: the sender was given no such number. */
static struct ucx_endpoint *sender_of(const struct notice *said)
{
    struct ucx_endpoint *e = ucx_endpoint_numbered(said->header.bytes);
    return e && memcmp(e->base.process, said->greeting.from, sizeof e->base.process) == 0 ? e : NULL;
}
static void hear_hello(struct fabric *fabric, const struct notice *said, size_t address_bytes)
{
    const struct greeting *g = &said->greeting;
    uint64_t here = said->header.bytes, there = said->header.id;
    struct endpoint *found = endpoint_find(fabric, g->from);
    if (greeting_is_over(fabric, g)) return;
    if (here && (!found || here != ucx_of(found)->number)) return; /* it answers one that is broken */
    /* The endpoint that we knew no longer exists. */
    if (found && !here && ucx_of(found)->theirs && ucx_of(found)->theirs != there) {
        endpoint_mark_broken(fabric, found, ucx_status_text(UCS_ERR_CONNECTION_RESET));
        found = NULL;
    }
    if (!found && ucx_endpoint_create(fabric, g->from, &g->key, said->address, address_bytes, &found) != TUTTI_OK)
        return; /* its sends say why */
    ucx_of(found)->theirs = there;
    found->least_turn = g->turn + 1; /* each says it once */
}
static void hear_opened(const struct notice *said)
{
    struct ucx_endpoint *e = sender_of(said);
    if (e && e->theirs == said->header.id) e->base.open = true;
}
static void hear_greeting(struct fabric *fabric, const struct saved_msg *msg)
{
    struct notice said = { .header = msg->header };
    memcpy(said.data, msg->data, msg->bytes);
    if (msg->header.kind == HELLO) hear_hello(fabric, &said, msg->bytes - sizeof said.greeting);
    else hear_opened(&said);
}
void ucx_greet(struct fabric *fabric)
{
    fabric->needs_poll = false;
    for (struct saved_msg *msg; (msg = saved_msgs_pop(&worker.greetings)) != NULL; saved_msg_free(fabric, msg))
        hear_greeting(fabric, msg);
    for (struct endpoint *e = fabric->endpoints; e; e = e->next) {
        if (!e->open && !endpoint_is_broken(e)) endpoint_greet(fabric, ucx_of(e));
        fabric->needs_poll |= !e->open && !endpoint_is_broken(e);
    }
}

/* ---- what it is told ---- */
static void hear_bye(struct fabric *fabric, const struct notice *said)
{
    struct ucx_endpoint *e = sender_of(said);
    if (!e || endpoint_is_broken(&e->base)) return;
    e->base.left = true;
    notice_send(fabric, e, BYE_HEARD, 0);
}
static void hear_answer(const struct notice *said)
{
    struct ucx_endpoint *e = sender_of(said);
    if (!e || e->heard || endpoint_is_broken(&e->base)) return;
    e->heard = true;
    worker.byes_open--;
}
/* For ucx_greet: nothing is opened within a callback. */
static void keep_greeting(struct fabric *fabric, const struct notice *said, size_t bytes)
{
    struct saved_msg *msg = saved_msg_new(&said->header, said->data, bytes, false);
    if (!msg) return;
    saved_msgs_push(&worker.greetings, msg);
    fabric->needs_poll = true;
}
void ucx_hear(struct fabric *fabric, const struct header *header, const void *data, size_t bytes)
{
    struct notice said;
    if (!notice_read(fabric, header, data, &bytes, &said)) return;
    switch ((enum kind_of_ucx)header->kind) {
    case HELLO:
    case OPENED: keep_greeting(fabric, &said, bytes); return;
    case BYE: hear_bye(fabric, &said); return;
    case BYE_HEARD: hear_answer(&said); return;
    default: return;
    }
}

/* ---- closing ---- */
void ucx_disconnect(struct fabric *fabric, struct endpoint *which)
{
    const ucp_request_param_t parameters = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_EP_CLOSE_FLAG_FORCE };
    struct ucx_endpoint *e = ucx_of(which);
    (void)fabric;
    if (!e->ep) return;
    ucs_status_ptr_t request = ucx.ucp_ep_close_nbx(e->ep, &parameters);
    e->ep = NULL;
    for (int n = 0; UCS_PTR_IS_PTR(request) && n < 1000; n++) {
        if (ucx.ucp_request_check_status(request) != UCS_INPROGRESS) break;
        ucx.ucp_worker_progress(worker.ucp);
    }
    if (UCS_PTR_IS_PTR(request)) ucx.ucp_request_free(request);
}
static void progress_or_pause(struct fabric *fabric)
{
    if (!ucx.ucp_worker_progress(worker.ucp)) fabric_pause(fabric);
    if (fabric->needs_poll) ucx_greet(fabric);
}
/* What has begun to open is opened first: the messages of UCX's own that are on their way are not to wait, either. */
static void end_greetings(struct fabric *fabric, int64_t until_ms)
{
    while (fabric->needs_poll && clock_ms() < until_ms) progress_or_pause(fabric);
}
static void say_goodbyes(struct fabric *fabric, int64_t until_ms)
{
    worker.byes_open = 0;
    for (struct endpoint *e = fabric->endpoints; e; e = e->next)
        if (e->open && !endpoint_is_broken(e)) worker.byes_open += notice_send(fabric, ucx_of(e), BYE, 0);
    while (worker.byes_open > 0 && clock_ms() < until_ms) progress_or_pause(fabric);
}
void ucx_part(struct fabric *fabric)
{
    int64_t until_ms = clock_ms() + BYE_MS;
    end_greetings(fabric, until_ms);
    say_goodbyes(fabric, until_ms);
    for (struct endpoint *e = fabric->endpoints; e; e = e->next) ucx_disconnect(fabric, e);
}
void ucx_endpoints_free(struct fabric *fabric)
{
    for (struct endpoint *e; (e = fabric->endpoints) != NULL; free(e)) fabric->endpoints = e->next;
}
