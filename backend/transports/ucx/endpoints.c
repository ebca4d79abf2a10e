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
#include "backend/transports/ucx/worker.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BYE_MS = 300 };

static bool is_to(const struct endpoint *e, const unsigned char process[16])
{
    return !endpoint_is_broken(e) && memcmp(e->process, process, sizeof e->process) == 0;
}
struct endpoint *endpoint_find(const unsigned char process[16])
{
    struct endpoint *e = worker.endpoints;
    while (e && (e->left || !is_to(e, process))) e = e->next;
    return e;
}
void endpoint_note_broken(struct endpoint *e, ucs_status_t why)
{
    if (endpoint_is_broken(e)) return;
    e->broken_ms = clock_ms();
    e->status = why;
    worker.breaks++;
    ports_wake();
}
static void on_broken(void *endpoint, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep;
    endpoint_note_broken(endpoint, status);
}
tutti_status endpoint_create(const unsigned char process[16], const unsigned char *card, size_t bytes,
    struct endpoint **out)
{
    static uint64_t numbers; /* never used again, also by a worker that is opened later */
    if (!bytes) return status_fail(TUTTI_SYSTEM, "its process has given no address of UCX");
    struct endpoint *e = memory_zeroed(1, sizeof *e);
    if (!e) return status_fail(TUTTI_NO_MEMORY, "no memory for a connection");
    memcpy(e->process, process, sizeof e->process);
    e->number = ++numbers;
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
    e->next = worker.endpoints;
    *out = worker.endpoints = e;
    worker.greets = true;
    return TUTTI_OK;
}

/* ---- opening ---- */
static struct header header_to(const struct endpoint *e, enum kind kind)
{
    struct header header = { .kind = kind, .id = e->number, .bytes = e->theirs };
    memcpy(&header.name, worker.process, sizeof worker.process);
    return header;
}
/* What the process itself is told. false: it could not be. */
static bool say(struct endpoint *e, enum kind kind, const void *data, size_t bytes, unsigned flags)
{
    struct flight *f = flight_new(bytes);
    if (!f) return false;
    f->header = header_to(e, kind);
    f->endpoint = e;
    f->bytes = bytes;
    if (bytes) memcpy(f->room, data, bytes);
    if (flight_send(f, NULL, UCP_AM_SEND_FLAG_EAGER | flags)) return true;
    bool sent = f->status == UCS_OK;
    if (sent) endpoint_said(f);
    flight_free(f);
    return sent;
}
void endpoint_said(const struct flight *f)
{
    if (f->header.kind == OPENED) f->endpoint->open |= f->status == UCS_OK;
    if (f->header.kind == BYE) worker.byes_open -= f->status != UCS_OK; /* then nobody answers */
}
/* Now, or not at all. */
static bool send_at_once(struct endpoint *e, const struct header *header, size_t header_bytes, size_t bytes)
{
    const ucp_request_param_t parameters = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL,
        .flags = UCP_AM_SEND_FLAG_EAGER };
    ucs_status_ptr_t sent =
        ucx.ucp_am_send_nbx(e->ep, UCX_MESSAGE_ID, header, header_bytes, worker.card, bytes, &parameters);
    if (!sent) return true;
    if (UCS_PTR_STATUS(sent) != UCS_ERR_NO_RESOURCE) endpoint_note_broken(e, UCS_PTR_STATUS(sent));
    return false;
}
/* UCX 1.22 sends nothing at once that has bytes. It is built without those assertions, so there HELLO may go like any
   other message, when an empty one, which nobody hears, has shown that the connection stands. */
static bool say_hello(struct endpoint *e)
{
    struct header header = header_to(e, HELLO);
    if (send_at_once(e, &header, sizeof header, worker.card_bytes)) return true;
    if (endpoint_is_broken(e) || !send_at_once(e, NULL, 0, 0)) return false;
    return say(e, HELLO, worker.card, worker.card_bytes, 0);
}
static void greet(struct endpoint *e)
{
    bool begins = memcmp(worker.process, e->process, sizeof e->process) <= 0;
    if (!e->said) e->said = say_hello(e);
    if (!e->said || !e->theirs || !begins || e->opens) return;
    e->opens = say(e, OPENED, NULL, 0, UCP_AM_SEND_FLAG_REPLY); /* the reply's address is what UCX must agree on */
}
static void hear_hello(const struct note *note)
{
    const struct header *h = &note->header;
    const unsigned char *process = (const unsigned char *)&h->name;
    struct endpoint *e = endpoint_find(process);
    if (h->bytes && (!e || h->bytes != e->number)) return; /* it answers one that is broken */
    if (e && !h->bytes && e->theirs && e->theirs != h->id) { /* the one that we knew is no more */
        endpoint_note_broken(e, UCS_ERR_CONNECTION_RESET);
        e = NULL;
    }
    if (!e && endpoint_create(process, note->data, note->bytes, &e) != TUTTI_OK) return; /* its sends say why */
    e->theirs = h->id;
}
static void hear_opened(const struct header *h)
{
    struct endpoint *e = endpoint_find((const unsigned char *)&h->name);
    if (e && e->theirs == h->id) e->open = true;
}
void endpoints_greet(void)
{
    worker.greets = false;
    for (struct note *note; (note = notes_pop(&worker.greetings)) != NULL; note_free(note)) {
        if (note->header.kind == HELLO) hear_hello(note);
        else hear_opened(&note->header);
    }
    for (struct endpoint *e = worker.endpoints; e; e = e->next) {
        if (!e->open && !endpoint_is_broken(e)) greet(e);
        worker.greets |= !e->open && !endpoint_is_broken(e);
    }
}

/* ---- what it is told ---- */
static void hear_bye(const struct header *header)
{
    struct endpoint *e = endpoint_find((const unsigned char *)&header->name);
    if (!e) return;
    e->left = true;
    say(e, BYE_HEARD, NULL, 0, 0);
}
static void hear_answer(const struct header *header)
{
    struct endpoint *e = worker.endpoints;
    while (e && !is_to(e, (const unsigned char *)&header->name)) e = e->next;
    if (!e || e->heard) return;
    e->heard = true;
    worker.byes_open--;
}
void endpoints_hear(const struct header *header, const void *data, size_t bytes)
{
    struct note *note;
    switch ((enum kind)header->kind) {
    case HELLO:
    case OPENED:
        note = note_new(header, data, bytes, false);
        if (!note) return;
        notes_push(&worker.greetings, note);
        worker.greets = true;
        return;
    case BYE: hear_bye(header); return;
    case BYE_HEARD: hear_answer(header); return;
    default: return;
    }
}

/* ---- closing ---- */
static void close_by_force(struct endpoint *e)
{
    const ucp_request_param_t parameters = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_EP_CLOSE_FLAG_FORCE };
    if (!e->ep) return;
    ucs_status_ptr_t request = ucx.ucp_ep_close_nbx(e->ep, &parameters);
    e->ep = NULL;
    for (int n = 0; UCS_PTR_IS_PTR(request) && n < 1000; n++) {
        if (ucx.ucp_request_check_status(request) != UCS_INPROGRESS) break;
        ucx.ucp_worker_progress(worker.ucp);
    }
    if (UCS_PTR_IS_PTR(request)) ucx.ucp_request_free(request);
}
void endpoint_break(struct endpoint *e, ucs_status_t why)
{
    struct ucx_port *polling = worker.polling;
    endpoint_note_broken(e, why);
    worker.polling = NULL;
    close_by_force(e);
    worker.polling = polling;
}
static void progress_or_pause(void)
{
    if (!ucx.ucp_worker_progress(worker.ucp)) worker_pause();
    if (worker.greets) endpoints_greet();
}
/* What has begun to open is opened first: the messages of UCX's own that are on their way are not to wait, either. */
static void end_greetings(int64_t until_ms)
{
    while (worker.greets && clock_ms() < until_ms) progress_or_pause();
}
static void say_goodbyes(int64_t until_ms)
{
    worker.byes_open = 0;
    for (struct endpoint *e = worker.endpoints; e; e = e->next)
        if (e->open && !endpoint_is_broken(e)) worker.byes_open += say(e, BYE, NULL, 0, 0);
    while (worker.byes_open > 0 && clock_ms() < until_ms) progress_or_pause();
}
void endpoints_close(void)
{
    int64_t until_ms = clock_ms() + BYE_MS;
    end_greetings(until_ms);
    say_goodbyes(until_ms);
    for (struct endpoint *e; (e = worker.endpoints) != NULL; free(e)) {
        worker.endpoints = e->next;
        close_by_force(e);
    }
}
