/* The worker's life, its endpoints and what it is told by UCX. The end: a BYE over every endpoint and a moment for the
   answers, so that what was sent last has arrived and the end of the connections is not taken for a death; then they
   are closed by force, which never waits. */
#include "backend/transports/ucx/worker.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/base/settings.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BYE_MS = 300, MOST_EARLY = 4096 };
struct worker worker = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* ---- notes ---- */
void notes_push(struct notes *notes, struct note *note)
{
    note->next = NULL;
    if (notes->last) notes->last->next = note;
    else notes->first = note;
    notes->last = note;
    notes->count++;
}
struct note *notes_pop(struct notes *notes)
{
    struct note *note = notes->first;
    if (!note) return NULL;
    notes->first = note->next;
    if (!notes->first) notes->last = NULL;
    notes->count--;
    return note;
}
void note_free(struct note *note)
{
    if (note->parked && worker.ucp) ucx.ucp_am_data_release(worker.ucp, note->parked);
    free(note);
}
static struct note *note_new(const struct header *header, void *data, size_t bytes, bool announced)
{
    struct note *note = memory_zeroed(1, sizeof *note + (announced ? 0 : bytes));
    if (!note) return NULL;
    note->header = *header;
    note->announced = announced;
    note->bytes = bytes;
    if (announced) note->parked = data;
    else if (bytes) memcpy(note->data, data, bytes);
    return note;
}

/* ---- what UCX says ---- */
static struct endpoint *endpoint_find(const unsigned char process[16])
{
    struct endpoint *e = worker.endpoints;
    while (e && (endpoint_is_broken(e) || memcmp(e->process, process, sizeof e->process) != 0)) e = e->next;
    return e;
}
static void answer_bye(const struct header *header, const ucp_am_recv_param_t *p)
{
    struct endpoint *e = endpoint_find((const unsigned char *)&header->name);
    if (e) e->left = true;
    struct flight *f = p->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP ? flight_new(0) : NULL;
    if (!f) return;
    f->header = (struct header){ .kind = BYE_HEARD };
    memcpy(&f->header.name, worker.process, sizeof worker.process);
    struct endpoint back = { .ep = p->reply_ep };
    f->endpoint = &back;
    bool flies = flight_send(f, NULL, UCP_AM_SEND_FLAG_EAGER);
    f->endpoint = NULL;
    if (!flies) flight_free(f);
}
static void hear_process(const struct header *header, const ucp_am_recv_param_t *p)
{
    if (header->kind == BYE) {
        answer_bye(header, p);
        return;
    }
    struct endpoint *e = endpoint_find((const unsigned char *)&header->name);
    if (!e || e->heard) return;
    e->heard = true;
    worker.byes_open--;
}
/* Early ones are of a communicator that this rank is about to join; if it never does they make room for others. */
static void keep_early(struct note *note)
{
    if (worker.early.count == MOST_EARLY) {
        LOG(WARN, "%d messages came for groups that were not joined here; the oldest is dropped", MOST_EARLY);
        note_free(notes_pop(&worker.early));
    }
    notes_push(&worker.early, note);
}
static bool keep_note(struct ucx_port *port, const struct header *header, void *data, size_t bytes, bool announced)
{
    if (!port && port_was_closed(header->comm, header->to)) return false;
    struct note *note = note_new(header, data, bytes, announced);
    if (note && port) port_note(port, note);
    else if (note) keep_early(note);
    else if (port) port_starve(port);
    return note && announced;
}
static ucs_status_t on_message(void *unused, const void *said, size_t said_bytes, void *data, size_t bytes,
    const ucp_am_recv_param_t *p)
{
    struct header header;
    bool announced = p->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
    (void)unused;
    if (said_bytes != sizeof header) return UCS_OK;
    memcpy(&header, said, sizeof header);
    if (header.kind >= BYE) {
        hear_process(&header, p);
        return UCS_OK;
    }
    struct ucx_port *port = port_find(header.comm, header.to);
    bool now = port && port == worker.polling;
    bool kept =
        now ? port_hear(port, &header, data, bytes, announced) : keep_note(port, &header, data, bytes, announced);
    return kept ? UCS_INPROGRESS : UCS_OK;
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

/* ---- endpoints ---- */
tutti_status endpoint_get(const unsigned char process[16], const unsigned char *card, size_t bytes,
    struct endpoint **out)
{
    struct endpoint *e = endpoint_find(process);
    *out = e;
    if (e) return TUTTI_OK;
    if (!bytes) return status_fail(TUTTI_SYSTEM, "its process has given no address of UCX");
    e = memory_zeroed(1, sizeof *e);
    if (!e) return status_fail(TUTTI_NO_MEMORY, "no memory for a connection");
    memcpy(e->process, process, sizeof e->process);
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
    return TUTTI_OK;
}
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

/* ---- the end ---- */
static void pause_unlocked(void)
{
    pthread_mutex_unlock(&worker.lock);
    nanosleep(&(struct timespec){ 0, 20000 }, NULL);
    pthread_mutex_lock(&worker.lock);
}
static void say_bye(struct endpoint *e)
{
    struct flight *f = endpoint_is_broken(e) ? NULL : flight_new(0);
    if (!f) return;
    f->header = (struct header){ .kind = BYE };
    memcpy(&f->header.name, worker.process, sizeof worker.process);
    f->endpoint = e;
    f->is_bye = true;
    worker.byes_open++;
    if (flight_send(f, NULL, UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_REPLY)) return;
    if (f->status != UCS_OK) worker.byes_open--;
    flight_free(f);
}
static void say_goodbyes(void)
{
    int64_t until_ms = clock_ms() + BYE_MS;
    worker.byes_open = 0;
    for (struct endpoint *e = worker.endpoints; e; e = e->next) say_bye(e);
    while (worker.byes_open > 0 && clock_ms() < until_ms) {
        if (!ucx.ucp_worker_progress(worker.ucp)) pause_unlocked();
    }
}
static void close_endpoints(void)
{
    for (struct endpoint *e; (e = worker.endpoints) != NULL; free(e)) {
        worker.endpoints = e->next;
        close_by_force(e);
    }
}
static void free_all(void)
{
    for (struct note *note; (note = notes_pop(&worker.early)) != NULL;) note_free(note);
    for (int class = 0; class < FLIGHT_CLASSES; class++)
        for (struct flight *f; (f = worker.spare[class]) != NULL; free(f)) worker.spare[class] = f->next;
}
static void finish(void)
{
    worker.stopping = true;
    thread_stop();
    if (worker.ucp) {
        say_goodbyes();
        close_endpoints();
        ucx.ucp_worker_progress(worker.ucp);
        free_all();
        ucx.ucp_worker_destroy(worker.ucp);
    }
    if (worker.context) ucx.ucp_cleanup(worker.context);
    worker.ucp = NULL;
    worker.context = NULL;
    worker.stopping = false;
}

/* ---- the beginning ---- */
static tutti_status refused(const char *what, ucs_status_t status)
{
    return status_fail(TUTTI_SYSTEM, "UCX %s does not start (%s): %s; TUTTI_LOG=info says more", ucx_library_name(),
        what, ucx_status_text(status));
}
/* Where the user says nothing: between hosts anything but shared memory, which would be found between containers, too;
   and of TCP only the interface that was chosen, as UCX would take any, and loopback, too. */
static void configure(ucp_config_t *config, const char *device, bool pretended)
{
    bool tcp_only = pretended || !ucx_has_rdma();
    if (!settings_given("UCX_TLS")) ucx.ucp_config_modify(config, "TLS", tcp_only ? "tcp" : "^sm");
    if (device && tcp_only && !settings_given("UCX_NET_DEVICES")) ucx.ucp_config_modify(config, "NET_DEVICES", device);
}
static tutti_status start_context(const char *device, bool pretended)
{
    ucp_config_t *config;
    const ucp_params_t parameters = { .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP };
    ucs_status_t status = ucx.ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK) return refused("configuration", status);
    configure(config, device, pretended);
    status = ucx.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &parameters, config, &worker.context);
    ucx.ucp_config_release(config);
    return status == UCS_OK ? TUTTI_OK : refused("context", status);
}
static tutti_status keep_card(void)
{
    ucp_address_t *address;
    ucs_status_t status = ucx.ucp_worker_get_address(worker.ucp, &address, &worker.card_bytes);
    if (status != UCS_OK) return refused("address", status);
    bool fits = worker.card_bytes <= sizeof worker.card;
    if (fits) memcpy(worker.card, address, worker.card_bytes);
    ucx.ucp_worker_release_address(worker.ucp, address);
    return fits ? TUTTI_OK
                : status_fail(TUTTI_UNSUPPORTED,
                      "UCX has an address of %zu bytes: fewer devices, please (UCX_NET_DEVICES)", worker.card_bytes);
}
static tutti_status start_worker(void)
{
    const ucp_worker_params_t parameters = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED };
    const ucp_am_handler_param_t handler = { .field_mask =
                                                 UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB,
        .id = UCX_MESSAGE_ID,
        .cb = on_message };
    ucs_status_t status = ucx.ucp_worker_create(worker.context, &parameters, &worker.ucp);
    if (status != UCS_OK) return refused("worker", status);
    status = ucx.ucp_worker_get_efd(worker.ucp, &worker.event);
    if (status != UCS_OK) return refused("event", status);
    status = ucx.ucp_worker_set_am_recv_handler(worker.ucp, &handler);
    return status == UCS_OK ? keep_card() : refused("handler", status);
}
static tutti_status start(const char *device, bool pretended)
{
    TRY(ucx_library_load());
    TRY(start_context(device, pretended));
    TRY(start_worker());
    return thread_start();
}

/* ---- fork: what the child has inherited is its parent's, and is not touched ---- */
static void before_fork(void) { pthread_mutex_lock(&worker.lock); }
static void in_parent(void) { pthread_mutex_unlock(&worker.lock); }
static void in_child(void) { worker = (struct worker){ .lock = PTHREAD_MUTEX_INITIALIZER }; }
static void prepare(void) { pthread_atfork(before_fork, in_parent, in_child); }

tutti_status ucx_open(const char *device, bool pretended, void *card, size_t *bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, prepare);
    pthread_mutex_lock(&worker.lock);
    while (worker.stopping) pause_unlocked();
    tutti_status status = worker.users ? TUTTI_OK : start(device, pretended);
    if (status == TUTTI_OK) {
        worker.users++;
        memcpy(card, worker.card, worker.card_bytes);
        *bytes = worker.card_bytes;
    } else if (!worker.users) finish();
    pthread_mutex_unlock(&worker.lock);
    return status;
}
void ucx_close(void)
{
    pthread_mutex_lock(&worker.lock);
    if (worker.users > 0 && --worker.users == 0) finish();
    pthread_mutex_unlock(&worker.lock);
}
