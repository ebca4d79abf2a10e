/* Fuzzes headers and bytes of messages, as every network passes them to a rank. There are one or two networks, whose
   behaviour the input decides: they connect or not, complete operations or fail them, and break. */
#include "tests/fuzz/rank.h"
#include "tests/fuzz/simulated_clock.h"

enum { STEPS = 48, IN_FLIGHT = 64, COMING = 8, NETWORKS = 2 };
enum step { DELIVER, DELIVER_LATER, RECEIVE, SEND, POLL, CANCEL, COMPLETE, BREAK, PAUSE, STEP_COUNT };

static struct input in;
static struct fabric fabrics[NETWORKS];
static int fabric_count;
static struct {
    struct fabric *by;
    struct fabric_op *op;
} under_way[IN_FLIGHT];
static int under_way_count;
static struct {
    struct fabric *by;
    struct endpoint *from;
    struct header header;
    size_t bytes;
    bool announced;
} coming[COMING];
static int coming_count;
static unsigned char bytes_that_come[EAGER_BYTES + 16];

/* ---- the network ---- */
static tutti_status network_start(struct fabric *fabric, const struct fabric_environment *place)
{
    (void)fabric;
    (void)place;
    return TUTTI_OK;
}
static void network_stop(struct fabric *fabric) { (void)fabric; }
static tutti_status network_connect(struct fabric *fabric, const unsigned char process[16], const struct key_id *key,
    const unsigned char *address, size_t bytes, struct endpoint **out)
{
    FUZZ_CHECK(key && address && bytes);
    uint8_t how = input_byte(&in);
    if (how == 255) return status_fail(TUTTI_SYSTEM, "refused");
    struct endpoint *e = calloc(1, sizeof *e);
    memcpy(e->process, process, sizeof e->process);
    e->is_open = how % 4 < 3;
    e->next = fabric->endpoints;
    *out = fabric->endpoints = e;
    return TUTTI_OK;
}
static bool network_begin_op(struct fabric *fabric, struct fabric_op *f)
{
    if ((f->endpoint && endpoint_is_broken(f->endpoint)) || under_way_count == IN_FLIGHT) {
        f->why = "broken";
        return false;
    }
    if (input_byte(&in) % 4 == 0) {
        f->why = NULL;
        return false;
    }
    under_way[under_way_count].by = fabric;
    under_way[under_way_count++].op = f;
    return true;
}
static bool network_send(struct fabric *fabric, struct fabric_op *f, const void *data, bool announced)
{
    (void)announced;
    const volatile unsigned char *from = data ? data : f->buffer;
    if (f->bytes) (void)(from[0] + from[f->bytes - 1]);
    return network_begin_op(fabric, f);
}
static bool network_fetch(struct fabric *fabric, struct fabric_op *f, void *descriptor, void *buffer)
{
    FUZZ_CHECK(f->bytes <= MOST_BYTES);
    if (f->bytes) memset(buffer ? buffer : f->buffer, 7, f->bytes);
    free(descriptor);
    return network_begin_op(fabric, f);
}
static void network_release(struct fabric *fabric, void *descriptor)
{
    (void)fabric;
    free(descriptor);
}
static void network_deliver(struct fabric *fabric, struct endpoint *from, const struct header *header, size_t bytes,
    bool announced)
{
    if (endpoint_is_broken(from)) return;
    void *data = announced ? malloc(1) : bytes_that_come;
    bool kept = fabric_handle_message(fabric, from, header, data, bytes, announced);
    if (announced && !kept) free(data);
    FUZZ_CHECK(announced || !kept);
}
static bool network_progress(struct fabric *fabric)
{
    int count = coming_count, others = 0;
    for (int i = 0; i < count; i++) {
        if (coming[i].by == fabric)
            network_deliver(fabric, coming[i].from, &coming[i].header, coming[i].bytes, coming[i].announced);
        else coming[others++] = coming[i];
    }
    coming_count = others;
    return others < count;
}
static bool network_arm(struct fabric *fabric)
{
    (void)fabric;
    return true;
}
/* Completes the operation that began last on that network. why: the error, or NULL. */
static void network_complete_last(struct fabric *fabric, const char *why)
{
    int i = under_way_count - 1;
    while (i >= 0 && under_way[i].by != fabric) i--;
    if (i < 0) return;
    struct fabric_op *f = under_way[i].op;
    under_way[i] = under_way[--under_way_count];
    fabric_op_complete(fabric, f, why);
}
static void network_complete_all(void)
{
    while (under_way_count) network_complete_last(under_way[0].by, NULL);
}
/* Completes all operations over the endpoint with an error. */
static void network_disconnect(struct fabric *fabric, struct endpoint *e)
{
    endpoint_mark_broken(fabric, e, "disconnected");
    for (int i = 0; i < under_way_count;) {
        struct fabric_op *f = under_way[i].op;
        if (under_way[i].by != fabric || f->endpoint != e) {
            i++;
            continue;
        }
        under_way[i] = under_way[--under_way_count];
        fabric_op_complete(fabric, f, "disconnected");
    }
}
static const struct fabric_operations operations = { .name = "fuzzed",
    .start = network_start,
    .shutdown = network_stop,
    .finish = network_stop,
    .connect = network_connect,
    .send = network_send,
    .fetch = network_fetch,
    .release = network_release,
    .progress = network_progress,
    .arm = network_arm,
    .disconnect = network_disconnect };

/* ---- what happens ---- */
/* Returns the open endpoint of the process with that rank, or of the process of rank 1 if the rank is not valid. It
   connects to that process if necessary. */
static struct endpoint *endpoint_from(struct fabric *fabric, int rank)
{
    const struct key_id key = { { 0 } };
    const unsigned char *process = fuzz_process[rank > 0 && rank < PROCESSES ? rank : 1];
    struct endpoint *e = endpoint_find(fabric, process);
    if (!e && network_connect(fabric, process, &key, process, 1, &e) != TUTTI_OK) return NULL;
    e->is_open = true;
    return e;
}
static void take_message(struct fuzz_rank *r, struct fabric *fabric, bool later)
{
    struct header header = rank_header(r, &in);
    bool announced = header.kind == MESSAGE && header.id;
    size_t bytes = header.kind == MESSAGE ? (size_t)header.bytes : 0;
    if (input_byte(&in) == 255) bytes = (size_t)rank_bytes(&in);
    if (input_byte(&in) == 255) announced = !announced;
    if (!announced && bytes > EAGER_BYTES) bytes = EAGER_BYTES;
    struct endpoint *from = endpoint_from(fabric, input_byte(&in) % 16 ? header.from : 3);
    if (!from) return;
    if (!later) {
        network_deliver(fabric, from, &header, bytes, announced);
        fabric_disconnect_faulty(fabric);
    } else if (coming_count < COMING) {
        coming[coming_count].by = fabric;
        coming[coming_count].from = from;
        coming[coming_count].header = header;
        coming[coming_count].bytes = bytes;
        coming[coming_count++].announced = announced;
    }
}
static void open_all(struct fabric *fabric)
{
    for (struct endpoint *e = fabric->endpoints; e; e = e->next) e->is_open = true;
}
static void take_step(struct fuzz_rank *r)
{
    struct fabric *fabric = &fabrics[input_byte(&in) % fabric_count];
    switch ((enum step)(input_byte(&in) % STEP_COUNT)) {
    case DELIVER:
        pthread_mutex_lock(&fabric->lock);
        take_message(r, fabric, false);
        pthread_mutex_unlock(&fabric->lock);
        break;
    case DELIVER_LATER: take_message(r, fabric, true); break;
    case RECEIVE: rank_post(r, &in, false); break;
    case SEND: rank_post(r, &in, true); break;
    case POLL: router_poll(r->router); break;
    case CANCEL: rank_cancel(r, &in); break;
    case COMPLETE:
        pthread_mutex_lock(&fabric->lock);
        open_all(fabric);
        network_complete_last(fabric, input_byte(&in) % 16 ? NULL : "broken");
        pthread_mutex_unlock(&fabric->lock);
        break;
    case BREAK:
        pthread_mutex_lock(&fabric->lock);
        if (fabric->endpoints && input_byte(&in) % 4 == 0) network_disconnect(fabric, fabric->endpoints);
        pthread_mutex_unlock(&fabric->lock);
        break;
    case PAUSE: simulated_ns += (int64_t)input_byte(&in) << 23; break;
    case STEP_COUNT: break;
    }
}
static void rank_end(struct fuzz_rank *r)
{
    network_complete_all();
    rank_finish(r);
    network_complete_all();
    for (struct fabric *fabric = fabrics; fabric < fabrics + fabric_count; fabric++) {
        for (struct saved_msg *msg; (msg = early_msgs_pop(fabric)) != NULL;) saved_msg_free(fabric, msg);
        fabric_ops_free_all(fabric);
        for (struct endpoint *e; (e = fabric->endpoints) != NULL; free(e)) fabric->endpoints = e->next;
    }
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_rank rank;
    in = (struct input){ data, size };
    coming_count = 0;
    for (int i = 0; i < NETWORKS; i++) fabrics[i] = (struct fabric)FABRIC(&operations);
    for (int i = 0; i < NETWORKS; i++) fabrics[i].address_bytes = 64;
    fabric_count = 1 + input_byte(&in) % NETWORKS;
    rank_init(&rank, &fabrics[0]);
    if (fabric_count > 1) rank_connect(&rank, &fabrics[1]);
    for (int i = 0; i < STEPS && in.left; i++) take_step(&rank);
    rank_end(&rank);
    return 0;
}
