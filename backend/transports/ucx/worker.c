/* The worker's life, and what it is told by UCX. */
#include "backend/transports/ucx/worker.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/base/settings.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_EARLY = 4096 };
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
struct note *note_new(const struct header *header, const void *data, size_t bytes, bool announced)
{
    struct note *note = memory_zeroed(1, sizeof *note + (announced ? 0 : bytes));
    if (!note) return NULL;
    note->header = *header;
    note->announced = announced;
    note->bytes = bytes;
    if (announced) note->parked = (void *)(uintptr_t)data;
    else if (bytes) memcpy(note->data, data, bytes);
    return note;
}

/* ---- what UCX says ---- */
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
    if (header.kind >= HELLO) {
        endpoints_hear(&header, data, announced ? 0 : bytes);
        return UCS_OK;
    }
    struct ucx_port *port = port_find(header.comm, header.to);
    bool now = port && port == worker.polling;
    bool kept =
        now ? port_hear(port, &header, data, bytes, announced) : keep_note(port, &header, data, bytes, announced);
    return kept ? UCS_INPROGRESS : UCS_OK;
}
/* ---- the end ---- */
void worker_pause(void)
{
    pthread_mutex_unlock(&worker.lock);
    nanosleep(&(struct timespec){ 0, 20000 }, NULL);
    pthread_mutex_lock(&worker.lock);
}
static void free_all(void)
{
    for (struct note *note; (note = notes_pop(&worker.early)) != NULL;) note_free(note);
    for (struct note *note; (note = notes_pop(&worker.greetings)) != NULL;) note_free(note);
    for (int class = 0; class < FLIGHT_CLASSES; class++)
        for (struct flight *f; (f = worker.spare[class]) != NULL; free(f)) worker.spare[class] = f->next;
}
static void finish(void)
{
    worker.stopping = true;
    thread_stop();
    if (worker.ucp) {
        endpoints_close();
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

tutti_status ucx_open(const unsigned char process[16], const char *device, bool pretended, void *card, size_t *bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, prepare);
    pthread_mutex_lock(&worker.lock);
    while (worker.stopping) worker_pause();
    memcpy(worker.process, process, sizeof worker.process);
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
