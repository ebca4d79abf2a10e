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

static struct ucx_endpoint *mine(struct endpoint *e) { return (struct ucx_endpoint *)e; }
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
    endpoint_note_broken(&ucx_fabric, endpoint, ucx_status_text(status));
}
tutti_status ucx_endpoint_create(struct fabric *fabric, const unsigned char process[16], const struct key_id *key,
    const unsigned char *card, size_t bytes, struct endpoint **out)
{
    (void)key;
    uint64_t number;
    if (!bytes) return status_fail(TUTTI_SYSTEM, "its process has given no address of UCX");
    TRY(random_fill(&number, sizeof number));
    struct ucx_endpoint *e = memory_zeroed(1, sizeof *e);
    if (!e) return status_fail(TUTTI_NO_MEMORY, "no memory for a connection");
    memcpy(e->base.process, process, sizeof e->base.process);
    e->number = number | 1; /* 0 is none */
    const ucp_ep_params_t parameters = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS
            | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = (const ucp_address_t *)(const void *)card,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = { .cb = on_broken, .arg = e } };
    ucs_status_t status = ucx.ucp_ep_create(worker.ucp, &parameters, &e->ep);
    if (status != UCS_OK) {
        free(e);
        return status_fail(TUTTI_SYSTEM,
            "UCX cannot connect: %s (both hosts need a network interface in common; see TUTTI_SOCKET_IFNAME and "
            "UCX_TLS)",
            ucx_status_text(status));
    }
    e->next_of_bucket = *bucket_of(e->number);
    *bucket_of(e->number) = e;
    e->base.next = fabric->endpoints;
    *out = fabric->endpoints = &e->base;
    fabric->restless = true;
    return TUTTI_OK;
}

/* ---- opening ---- */
static struct header header_to(const struct fabric *fabric, const struct ucx_endpoint *e, enum kind_of_ucx kind)
{
    struct header header = { .kind = kind, .id = e->number, .bytes = e->theirs };
    memcpy(&header.name, fabric->process, sizeof fabric->process);
    return header;
}
/* What the process itself is told. false: it could not be. */
static bool say(struct fabric *fabric, struct ucx_endpoint *e, enum kind_of_ucx kind, const void *data, size_t bytes,
    unsigned flags)
{
    struct flight *f = flight_new(fabric, bytes);
    if (!f) return false;
    f->header = header_to(fabric, e, kind);
    f->endpoint = &e->base;
    f->bytes = bytes;
    if (bytes) memcpy(f->room, data, bytes);
    flight_enlist(f, &fabric->orphans); /* before: it may land within */
    if (ucx_send_flags(f, NULL, UCP_AM_SEND_FLAG_EAGER | flags)) return true;
    flight_remove(f);
    bool sent = !f->why;
    if (sent) ucx_said(fabric, f);
    flight_free(fabric, f);
    return sent;
}
void ucx_said(struct fabric *fabric, const struct flight *f)
{
    (void)fabric;
    if (f->header.kind == OPENED) f->endpoint->open |= !f->why;
    if (f->header.kind == BYE) worker.byes_open -= f->why != NULL; /* then nobody answers */
}
/* Now, or not at all. */
static bool send_at_once(struct fabric *fabric, struct ucx_endpoint *e, const struct header *header,
    size_t header_bytes, size_t bytes)
{
    const ucp_request_param_t parameters = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL,
        .flags = UCP_AM_SEND_FLAG_EAGER };
    ucs_status_ptr_t sent =
        ucx.ucp_am_send_nbx(e->ep, UCX_MESSAGE_ID, header, header_bytes, fabric->card, bytes, &parameters);
    if (!sent) return true;
    if (UCS_PTR_STATUS(sent) != UCS_ERR_NO_RESOURCE)
        endpoint_note_broken(fabric, &e->base, ucx_status_text(UCS_PTR_STATUS(sent)));
    return false;
}
/* UCX 1.22 sends nothing at once that has bytes. It is built without those assertions, so there HELLO may go like any
   other message, when an empty one, which nobody hears, has shown that the connection stands. */
static bool say_hello(struct fabric *fabric, struct ucx_endpoint *e)
{
    struct header header = header_to(fabric, e, HELLO);
    if (send_at_once(fabric, e, &header, sizeof header, fabric->card_bytes)) return true;
    if (endpoint_is_broken(&e->base) || !send_at_once(fabric, e, NULL, 0, 0)) return false;
    return say(fabric, e, HELLO, fabric->card, fabric->card_bytes, 0);
}
static void greet(struct fabric *fabric, struct ucx_endpoint *e)
{
    bool begins = memcmp(fabric->process, e->base.process, sizeof e->base.process) <= 0;
    if (!e->said) e->said = say_hello(fabric, e);
    if (!e->said || !e->theirs || !begins || e->opens) return;
    /* the reply's address is what UCX must agree on */
    e->opens = say(fabric, e, OPENED, NULL, 0, UCP_AM_SEND_FLAG_REPLY);
}
/* By the number of our end, which the process that it names has been told. NULL: that is not so. */
static struct ucx_endpoint *sender_of(const struct header *h)
{
    struct ucx_endpoint *e = ucx_endpoint_numbered(h->bytes);
    return e && memcmp(e->base.process, &h->name, sizeof e->base.process) == 0 ? e : NULL;
}
static void hear_hello(struct fabric *fabric, const struct note *note)
{
    const struct header *h = &note->header;
    const unsigned char *process = (const unsigned char *)&h->name;
    struct endpoint *found = endpoint_find(fabric, process);
    if (h->bytes && (!found || h->bytes != mine(found)->number)) return; /* it answers one that is broken */
    if (found && !h->bytes && mine(found)->theirs && mine(found)->theirs != h->id) { /* what we knew is no more */
        endpoint_note_broken(fabric, found, ucx_status_text(UCS_ERR_CONNECTION_RESET));
        found = NULL;
    }
    if (!found && ucx_endpoint_create(fabric, process, NULL, note->data, note->bytes, &found) != TUTTI_OK)
        return; /* its sends say why */
    mine(found)->theirs = h->id;
}
static void hear_opened(struct fabric *fabric, const struct header *h)
{
    struct ucx_endpoint *e = sender_of(h);
    (void)fabric;
    if (e && e->theirs == h->id) e->base.open = true;
}
void ucx_greet(struct fabric *fabric)
{
    fabric->restless = false;
    for (struct note *note; (note = notes_pop(&worker.greetings)) != NULL; note_free(fabric, note)) {
        if (note->header.kind == HELLO) hear_hello(fabric, note);
        else hear_opened(fabric, &note->header);
    }
    for (struct endpoint *e = fabric->endpoints; e; e = e->next) {
        if (!e->open && !endpoint_is_broken(e)) greet(fabric, mine(e));
        fabric->restless |= !e->open && !endpoint_is_broken(e);
    }
}

/* ---- what it is told ---- */
static void hear_bye(struct fabric *fabric, const struct header *header)
{
    struct ucx_endpoint *e = sender_of(header);
    if (!e || endpoint_is_broken(&e->base)) return;
    e->base.left = true;
    say(fabric, e, BYE_HEARD, NULL, 0, 0);
}
static void hear_answer(const struct header *header)
{
    struct ucx_endpoint *e = sender_of(header);
    if (!e || e->heard || endpoint_is_broken(&e->base)) return;
    e->heard = true;
    worker.byes_open--;
}
void ucx_hear(struct fabric *fabric, const struct header *header, const void *data, size_t bytes)
{
    struct note *note;
    switch ((enum kind_of_ucx)header->kind) {
    case HELLO:
    case OPENED:
        note = bytes <= FABRIC_CARD_BYTES ? note_new(header, data, bytes, false) : NULL;
        if (!note) return;
        notes_push(&worker.greetings, note);
        fabric->restless = true;
        return;
    case BYE: hear_bye(fabric, header); return;
    case BYE_HEARD: hear_answer(header); return;
    default: return;
    }
}

/* ---- closing ---- */
void ucx_disconnect(struct fabric *fabric, struct endpoint *which)
{
    const ucp_request_param_t parameters = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_EP_CLOSE_FLAG_FORCE };
    struct ucx_endpoint *e = mine(which);
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
    if (fabric->restless) ucx_greet(fabric);
}
/* What has begun to open is opened first: the messages of UCX's own that are on their way are not to wait, either. */
static void end_greetings(struct fabric *fabric, int64_t until_ms)
{
    while (fabric->restless && clock_ms() < until_ms) progress_or_pause(fabric);
}
static void say_goodbyes(struct fabric *fabric, int64_t until_ms)
{
    worker.byes_open = 0;
    for (struct endpoint *e = fabric->endpoints; e; e = e->next)
        if (e->open && !endpoint_is_broken(e)) worker.byes_open += say(fabric, mine(e), BYE, NULL, 0, 0);
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
