/* Messages as UCX hands them over: of the fabric, and those by which two processes open and close their connection.
   Its library is the fuzzer's: it connects or not, and sends at once, later or never. */
#include "backend/base/random.h"
#include "backend/transports/ucx/worker.h"
#include "tests/fuzz/pretended_clock.h"
#include "tests/fuzz/rank.h"

enum { STEPS = 48, PENDING = 32 };
enum step { HEAR, HEAR_TOO, GREET, LAND, RECEIVE, SEND, POLL, DISCONNECT, STEPS_THERE_ARE };
struct pending_conn { ucp_send_nbx_callback_t done; void *user; ucp_ep_h ep; };     /* a request */

static struct input in;
static struct pending_conn pending[PENDING];
static int pending_count;
static uintptr_t endpoints;                                     /* of the library, so far */

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
    pending[pending_count] = (struct pending_conn){ p->cb.send, p->user_data, ep };
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
static void land(int i, ucs_status_t status)
{
    struct pending_conn one = pending[i];
    pending[i] = pending[--pending_count];
    one.done(&pending[pending_count], status, one.user);
}
static void land_all(ucs_status_t status)
{
    while (pending_count) land(pending_count - 1, status);
}
/* Requests of the endpoint end in the next progress. */
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
            land(i, UCS_ERR_CANCELED);
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
/* Of an endpoint of ours, which its process has been told. */
static uint64_t some_number(void)
{
    struct endpoint *e = ucx_fabric.endpoints;
    for (int n = input_byte(&in) % 4; e && e->next && n > 0; n--) e = e->next;
    return e ? ((struct ucx_endpoint *)e)->number : 1;
}
/* A notice of a process about the connection: with its proof, or with one byte changed. */
static void hear_process(void)
{
    struct fabric of = { .address_bytes = ucx_fabric.address_bytes };
    struct ucx_endpoint end = { .number = input_byte(&in) % 4, .peer_number = input_byte(&in) % 4 ? some_number() : 0 };
    struct notice said;
    const struct key_id key = fuzz_key();
    const ucp_am_recv_param_t p = { .recv_attr = 0 };
    memcpy(of.process, fuzz_process[input_byte(&in) % PROCESSES], sizeof of.process);
    FUZZ_CHECK(endpoint_init_identity(&of, &end.base, fuzz_process[0], ucx_fabric.life, &key) == TUTTI_OK);
    end.base.turn -= input_byte(&in) % 8;
    size_t bytes = notice_make(&of, &end, (enum kind_of_ucx)(KIND_OF_FABRIC + input_byte(&in) % 5), &said);
    uint8_t wrong = input_byte(&in);
    if (wrong > 240) said.data[input_byte(&in) % bytes] ^= 1;
    if (wrong == 240) bytes = input_number(&in) % sizeof said.data;
    ucx_on_message(NULL, &said.header, sizeof said.header, said.data, bytes, &p);
}
static void hear_rank(struct fuzz_rank *r)
{
    static unsigned char bytes[EAGER_BYTES];
    struct {
        struct header header;
        uint64_t connection;
    } said = { .connection = some_number() };
    said.header = rank_header(r, &in);
    size_t length = sizeof said - (input_byte(&in) == 255), count = sizeof bytes;
    if (input_byte(&in) == 0) length = sizeof said.header;
    bool announced = said.header.kind == MESSAGE && said.header.id;
    ucp_am_recv_param_t p = { .recv_attr = announced ? UCP_AM_RECV_ATTR_FLAG_RNDV : 0 };
    if (said.header.kind == MESSAGE) count = (size_t)said.header.bytes;
    if (input_byte(&in) == 255) count = input_byte(&in);
    if (!announced && count > sizeof bytes) count = sizeof bytes;
    void *data = announced ? malloc(1) : bytes;
    ucs_status_t kept = ucx_on_message(NULL, &said, length, data, count, &p);
    FUZZ_CHECK(kept == UCS_OK || announced);
    if (announced && kept == UCS_OK) free(data);
}
static void take_step(struct fuzz_rank *r)
{
    struct fabric *fabric = &ucx_fabric;
    switch ((enum step)(input_byte(&in) % STEPS_THERE_ARE)) {
    case HEAR:
    case HEAR_TOO:
        pthread_mutex_lock(&fabric->lock);
        if (input_byte(&in) % 2) hear_process();
        else hear_rank(r);
        fabric_disconnect_faulty(fabric);
        pthread_mutex_unlock(&fabric->lock);
        break;
    case GREET:
        pthread_mutex_lock(&fabric->lock);
        ucx_advance_handshakes(fabric);
        pthread_mutex_unlock(&fabric->lock);
        break;
    case LAND:
        pthread_mutex_lock(&fabric->lock);
        if (pending_count) land(pending_count - 1, input_byte(&in) % 8 ? UCS_OK : UCS_ERR_CONNECTION_RESET);
        pthread_mutex_unlock(&fabric->lock);
        break;
    case RECEIVE: rank_post(r, &in, false); break;
    case SEND: rank_post(r, &in, true); break;
    case POLL: router_poll(r->router); break;
    case DISCONNECT: pretended_ns += (int64_t)input_byte(&in) << 23; break;
    case STEPS_THERE_ARE: break;
    }
}
int LLVMFuzzerInitialize(int *count, char ***arguments)
{
    (void)count;
    (void)arguments;
    pretended_haste = 1000;
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
    land_all(UCS_OK);
    rank_finish(&rank);
    land_all(UCS_OK);
    pthread_mutex_lock(&fabric->lock);
    operations->shutdown(fabric);
    land_all(UCS_ERR_CANCELED);
    for (struct saved_msg *msg; (msg = early_msgs_pop(fabric)) != NULL;) saved_msg_free(fabric, msg);
    operations->finish(fabric);
    fabric_ops_free_all(fabric);
    pthread_mutex_unlock(&fabric->lock);
    return 0;
}
