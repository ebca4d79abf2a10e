/* Fuzzes messages, as UCX delivers them: those of the fabric, and the notices by which two processes open and close
   their connection. The input decides what the library of UCX does: it connects or not, and completes a send at once,
   later, or with an error. */
#include "backend/base/random.h"
#include "backend/transports/ucx/worker.h"
#include "tests/fuzz/rank.h"
#include "tests/fuzz/simulated_clock.h"

enum { STEPS = 48, PENDING = 32 };
enum step { DELIVER, DELIVER_TOO, HANDSHAKE, COMPLETE, RECEIVE, SEND, POLL, TIME_PASSES, STEP_COUNT };
/* A send that is not complete yet. */
struct request { ucp_send_nbx_callback_t done; void *user; ucp_ep_h ep; };

static struct input in;
static struct request pending[PENDING];
static int pending_count;
/* The endpoints that the library has made so far. */
static uintptr_t endpoints;

/* In place of backend/base/random.c: the same numbers each time. */
static uint64_t drawn;
tutti_status random_fill(void *bytes, size_t count)
{
    drawn += 2;
    memset(bytes, 0, count);
    memcpy(bytes, &drawn, count < sizeof drawn ? count : sizeof drawn);
    return TUTTI_OK;
}

/* ---- the library ---- */
static ucs_status_t ep_create(ucp_worker_h ucp, const ucp_ep_params_t *parameters, ucp_ep_h *out)
{
    (void)ucp;
    FUZZ_CHECK(parameters->address);
    *out = (ucp_ep_h)(++endpoints * 64);
    return input_byte(&in) == 255 ? UCS_ERR_UNREACHABLE : UCS_OK;
}
static ucs_status_ptr_t am_send(ucp_ep_h ep, unsigned id, const void *header, size_t header_bytes, const void *data,
    size_t count, const ucp_request_param_t *p)
{
    const volatile unsigned char *from = data;
    FUZZ_CHECK(ep && id == UCX_MESSAGE_ID && (header || !header_bytes));
    if (count) (void)(from[0] + from[count - 1]);
    uint8_t how = input_byte(&in) % 8;
    if (how == 0) return UCS_STATUS_PTR(UCS_ERR_CONNECTION_RESET);
    if (!(p->op_attr_mask & UCP_OP_ATTR_FIELD_CALLBACK)) return how == 1 ? UCS_STATUS_PTR(UCS_ERR_NO_RESOURCE) : NULL;
    if (how < 4 || pending_count == PENDING) return NULL;
    pending[pending_count] = (struct request){ p->cb.send, p->user_data, ep };
    return (ucs_status_ptr_t)&pending[pending_count++];
}
static ucs_status_ptr_t am_recv(ucp_worker_h ucp, void *data, void *buffer, size_t count, const ucp_request_param_t *p)
{
    (void)ucp;
    (void)p;
    FUZZ_CHECK(count <= MOST_BYTES);
    free(data);
    if (count) memset(buffer, 7, count);
    return input_byte(&in) % 8 ? NULL : UCS_STATUS_PTR(UCS_ERR_CONNECTION_RESET);
}
static void am_release(ucp_worker_h ucp, void *data)
{
    (void)ucp;
    free(data);
}
static void request_complete(int i, ucs_status_t status)
{
    struct request one = pending[i];
    pending[i] = pending[--pending_count];
    one.done(&pending[pending_count], status, one.user);
}
static void requests_complete_all(ucs_status_t status)
{
    while (pending_count) request_complete(pending_count - 1, status);
}
/* The requests of the endpoint complete in the next call of progress(). */
static ucs_status_ptr_t ep_close(ucp_ep_h ep, const ucp_request_param_t *parameters)
{
    FUZZ_CHECK(ep && parameters);
    for (int i = 0; i < pending_count; i++)
        if (pending[i].ep == ep) pending[i].ep = NULL;
    return NULL;
}
static unsigned progress(ucp_worker_h ucp)
{
    unsigned count = 0;
    (void)ucp;
    for (int i = pending_count - 1; i >= 0; i--)
        if (i < pending_count && !pending[i].ep) {
            request_complete(i, UCS_ERR_CANCELED);
            count++;
        }
    return count;
}
static ucs_status_t arm(ucp_worker_h ucp)
{
    (void)ucp;
    return UCS_OK;
}
static ucs_status_t check_status(void *request)
{
    (void)request;
    return UCS_OK;
}
static void request_free(void *request) { (void)request; }
static void destroy(ucp_worker_h ucp) { (void)ucp; }
static void clean_up(ucp_context_h context) { (void)context; }

/* ---- what comes ---- */
/* Returns the number of one of our endpoints, which its process knows. */
static uint64_t some_number(void)
{
    struct endpoint *e = ucx_fabric.endpoints;
    for (int n = input_byte(&in) % 4; e && e->next && n > 0; n--) e = e->next;
    return e ? ((struct ucx_endpoint *)e)->number : 1;
}
/* Delivers a notice of a process, with its proof; one byte may be changed. */
static void deliver_notice(void)
{
    struct fabric of = { .address_bytes = ucx_fabric.address_bytes };
    struct ucx_endpoint end = { .number = input_byte(&in) % 4, .peer_number = input_byte(&in) % 4 ? some_number() : 0 };
    struct notice notice;
    const struct key_id key = fuzz_key();
    const ucp_am_recv_param_t p = { .recv_attr = 0 };
    memcpy(of.process, fuzz_process[input_byte(&in) % PROCESSES], sizeof of.process);
    FUZZ_CHECK(endpoint_init_identity(&of, &end.base, fuzz_process[0], ucx_fabric.life, &key) == TUTTI_OK);
    end.base.turn -= input_byte(&in) % 8;
    size_t bytes = notice_make(&of, &end, (enum kind_of_ucx)(KIND_OF_FABRIC + input_byte(&in) % 5), &notice);
    uint8_t wrong = input_byte(&in);
    if (wrong > 240) notice.data[input_byte(&in) % bytes] ^= 1;
    if (wrong == 240) bytes = input_number(&in) % sizeof notice.data;
    ucx_on_message(NULL, &notice.header, sizeof notice.header, notice.data, bytes, &p);
}
/* Delivers a message of a rank. */
static void deliver_message(struct fuzz_rank *r)
{
    static unsigned char bytes[EAGER_BYTES];
    struct {
        struct header header;
        uint64_t connection;
    } head = { .connection = some_number() };
    head.header = rank_header(r, &in);
    size_t length = sizeof head - (input_byte(&in) == 255), count = sizeof bytes;
    if (input_byte(&in) == 0) length = sizeof head.header;
    bool announced = head.header.kind == MESSAGE && head.header.id;
    ucp_am_recv_param_t p = { .recv_attr = announced ? UCP_AM_RECV_ATTR_FLAG_RNDV : 0 };
    if (head.header.kind == MESSAGE) count = (size_t)head.header.bytes;
    if (input_byte(&in) == 255) count = input_byte(&in);
    if (!announced && count > sizeof bytes) count = sizeof bytes;
    void *data = announced ? malloc(1) : bytes;
    ucs_status_t kept = ucx_on_message(NULL, &head, length, data, count, &p);
    FUZZ_CHECK(kept == UCS_OK || announced);
    if (announced && kept == UCS_OK) free(data);
}
static void take_step(struct fuzz_rank *r)
{
    struct fabric *fabric = &ucx_fabric;
    switch ((enum step)(input_byte(&in) % STEP_COUNT)) {
    case DELIVER:
    case DELIVER_TOO:
        pthread_mutex_lock(&fabric->lock);
        if (input_byte(&in) % 2) deliver_notice();
        else deliver_message(r);
        fabric_disconnect_faulty(fabric);
        pthread_mutex_unlock(&fabric->lock);
        break;
    case HANDSHAKE:
        pthread_mutex_lock(&fabric->lock);
        ucx_advance_handshakes(fabric);
        pthread_mutex_unlock(&fabric->lock);
        break;
    case COMPLETE:
        pthread_mutex_lock(&fabric->lock);
        if (pending_count) request_complete(pending_count - 1, input_byte(&in) % 8 ? UCS_OK : UCS_ERR_CONNECTION_RESET);
        pthread_mutex_unlock(&fabric->lock);
        break;
    case RECEIVE: rank_post(r, &in, false); break;
    case SEND: rank_post(r, &in, true); break;
    case POLL: router_poll(r->router); break;
    case TIME_PASSES: simulated_ns += (int64_t)input_byte(&in) << 23; break;
    case STEP_COUNT: break;
    }
}
int LLVMFuzzerInitialize(int *count, char ***arguments)
{
    (void)count;
    (void)arguments;
    simulated_sleep_factor = 1000;
    ucx.ucp_ep_create = ep_create;
    ucx.ucp_am_send_nbx = am_send;
    ucx.ucp_am_recv_data_nbx = am_recv;
    ucx.ucp_am_data_release = am_release;
    ucx.ucp_ep_close_nbx = ep_close;
    ucx.ucp_worker_progress = progress;
    ucx.ucp_worker_arm = arm;
    ucx.ucp_request_check_status = check_status;
    ucx.ucp_request_free = request_free;
    ucx.ucp_worker_destroy = destroy;
    ucx.ucp_cleanup = clean_up;
    return 0;
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fabric *fabric = &ucx_fabric;
    const struct fabric_operations *operations = fabric->operations;
    struct fuzz_rank rank;
    in = (struct input){ data, size };
    drawn = endpoints = 0;
    *fabric = (struct fabric)FABRIC(operations);
    worker = (struct worker){ .ucp = (ucp_worker_h)(uintptr_t)64 };
    fabric->address_bytes = 64;
    rank_init(&rank, fabric);
    for (int i = 0; i < STEPS && in.left; i++) take_step(&rank);
    requests_complete_all(UCS_OK);
    rank_finish(&rank);
    requests_complete_all(UCS_OK);
    pthread_mutex_lock(&fabric->lock);
    operations->shutdown(fabric);
    requests_complete_all(UCS_ERR_CANCELED);
    for (struct saved_msg *msg; (msg = early_msgs_pop(fabric)) != NULL;) saved_msg_free(fabric, msg);
    operations->finish(fabric);
    fabric_ops_free_all(fabric);
    pthread_mutex_unlock(&fabric->lock);
    return 0;
}
