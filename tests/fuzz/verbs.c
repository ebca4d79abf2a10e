/* Fuzzes the datagrams by which two processes find each other over RDMA, and the bytes that the peer has written into
   the eager ring of a connection when a completion reports them. The device sends no bytes; the input decides which
   requests it refuses. */
#include "backend/transports/verbs/verbs.h"
#include "backend/base/memory.h"
#include "backend/transports/verbs/handshake.h"
#include "tests/fuzz/rank.h"
#include "tests/fuzz/simulated_clock.h"
#include <endian.h>
#include <errno.h>
#include <sanitizer/asan_interface.h>

enum { STEPS = 40, PAIRS = 1 << 12, WRITTEN_MOST = 512 };
enum step { HELLO, HELLO_TOO, WRITTEN, WRITTEN_TOO, COMPLETED, RECEIVE, SEND, POLL, TIME_PASSES, STEP_COUNT };
static struct input in;
static struct nic nic;
static struct devices devices;
static struct ibv_context context;
static struct ibv_qp pairs[PAIRS];
static uint32_t pairs_made;

/* ---- memory of eager rings ---- */
/* Fresh pages for the rings of each connection cost three times as much as all else here, so the linker sends the
   library's calls to these functions, which use the same blocks again. A block that is not in use may not be touched:
   the sanitizer refuses, as it does for freed memory. */
enum { BLOCKS = 2 * PROCESSES * 4 };
static _Alignas(64) unsigned char blocks[BLOCKS][RING_BYTES];
static bool block_used[BLOCKS];
void *__real_memory_alloc_aligned(size_t bytes);
void __real_free(void *at);
void *__wrap_memory_alloc_aligned(size_t bytes);
void __wrap_free(void *at);
void *__wrap_memory_alloc_aligned(size_t bytes)
{
    int i = 0;
    while (i < BLOCKS && block_used[i]) i++;
    if (bytes != RING_BYTES || i == BLOCKS) return __real_memory_alloc_aligned(bytes);
    block_used[i] = true;
    ASAN_UNPOISON_MEMORY_REGION(blocks[i], RING_BYTES);
    return memset(blocks[i], 0, RING_BYTES);
}
void __wrap_free(void *at)
{
    uintptr_t offset = (uintptr_t)at - (uintptr_t)blocks;
    if (offset >= sizeof blocks) {
        __real_free(at);
        return;
    }
    FUZZ_CHECK(offset % RING_BYTES == 0 && block_used[offset / RING_BYTES]);
    block_used[offset / RING_BYTES] = false;
    ASAN_POISON_MEMORY_REGION(at, RING_BYTES);
}

/* ---- the device ---- */
static int refuses(void) { return input_byte(&in) == 255 ? EINVAL : 0; }
static struct ibv_mr region;
static struct ibv_mr *reg_mr(struct ibv_pd *domain, void *at, size_t bytes, int access)
{
    (void)domain;
    (void)access;
    return at && bytes && !refuses() ? &region : NULL;
}
static int dereg_mr(struct ibv_mr *which) { return which != &region; }
static struct ibv_qp *create_qp(struct ibv_pd *domain, struct ibv_qp_init_attr *how)
{
    (void)domain;
    (void)how;
    if (pairs_made + 1 >= PAIRS || refuses()) return NULL;
    struct ibv_qp *pair = &pairs[++pairs_made];
    *pair = (struct ibv_qp){ .context = &context, .qp_num = pairs_made };
    return pair;
}
static int modify_qp(struct ibv_qp *pair, struct ibv_qp_attr *how, int mask)
{
    return !pair || !how || !mask || refuses();
}
static int destroy_qp(struct ibv_qp *pair) { return !pair; }
static struct ibv_ah *create_ah(struct ibv_pd *domain, struct ibv_ah_attr *how)
{
    static struct ibv_ah address;
    (void)domain;
    return how && !refuses() ? &address : NULL;
}
static int destroy_ah(struct ibv_ah *address) { return !address; }
static int resize_cq(struct ibv_cq *queue, int entries) { return !queue || !entries; }
static const char *status_text(enum ibv_wc_status status) { return status ? "failed" : "fine"; }
/* Reads the first and the last byte that a device would read, so that the sanitizer checks them. */
static int post_send(struct ibv_qp *pair, struct ibv_send_wr *list, struct ibv_send_wr **bad)
{
    FUZZ_CHECK(pair && bad);
    for (const struct ibv_send_wr *r = list; r; r = r->next) {
        const volatile unsigned char *at = (const unsigned char *)(uintptr_t)r->sg_list->addr;
        if (r->sg_list->length) (void)(at[0] + at[r->sg_list->length - 1]);
    }
    return refuses();
}
static int post_recv(struct ibv_qp *pair, struct ibv_recv_wr *list, struct ibv_recv_wr **bad)
{
    return !pair || !list || !bad;
}
static int post_srq_recv(struct ibv_srq *queue, struct ibv_recv_wr *list, struct ibv_recv_wr **bad)
{
    return !queue || !list || !bad;
}
static struct ibv_wc coming[8];
static int coming_count;
static int poll_cq(struct ibv_cq *queue, int most, struct ibv_wc *out)
{
    int count = coming_count;
    FUZZ_CHECK(queue && most >= count);
    memcpy(out, coming, (size_t)count * sizeof *out);
    coming_count = 0;
    return count;
}
/* ---- in place of registration.c: all memory is registered ---- */
tutti_status registration_cache_create(struct ibv_pd *domain, struct registration_limits limits,
    struct registration_cache **out)
{
    (void)domain;
    (void)limits;
    *out = NULL;
    return TUTTI_OK;
}
void registration_cache_destroy(struct registration_cache *r) { (void)r; }
tutti_status registration_cache_take(struct registration_cache *r, const void *at, size_t bytes, bool writes,
    struct registered *out)
{
    (void)r;
    const volatile unsigned char *memory = at;
    if (bytes) (void)(memory[0] + memory[bytes - 1] + writes);
    if (refuses()) return TUTTI_NO_MEMORY;
    *out = (struct registered){ .region = &region };
    return TUTTI_OK;
}
tutti_status registration_cache_add_permanent(struct registration_cache *r, void *at, size_t bytes, int access,
    struct registered *out)
{
    return registration_cache_take(r, at, bytes, access, out);
}
tutti_status registration_cache_take_dmabuf(struct registration_cache *r, int descriptor, uint64_t offset, size_t bytes,
    uint64_t iova, struct registered *out)
{
    (void)r;
    (void)out;
    return descriptor || offset || bytes || iova ? TUTTI_UNSUPPORTED : TUTTI_SYSTEM;
}
void registration_cache_give(struct registration_cache *r, const struct registered *registered)
{
    (void)r;
    FUZZ_CHECK(registered->region == &region);
}
void registration_cache_sweep(struct registration_cache *r) { (void)r; }
bool registration_cache_can_watch(const struct registration_cache *r) { return r; }
struct registration_counts registration_cache_get_counts(struct registration_cache *r)
{
    (void)r;
    return (struct registration_counts){ 0 };
}

/* ---- what comes ---- */
static void push(struct ibv_wc wc)
{
    if (coming_count < 8) coming[coming_count++] = wc;
}
static struct verbs_endpoint *some_endpoint(void)
{
    struct endpoint *e = verbs_fabric.endpoints;
    for (int n = input_byte(&in) % 4; e && e->next && n > 0; n--) e = e->next;
    return e ? verbs_endpoint_of(e) : NULL;
}
/* Delivers a handshake datagram of a process, some of whose fields or bytes may be changed. */
static void deliver_hello(void)
{
    struct fabric of = { .users = 0 };
    struct endpoint end = { .is_open = false };
    const struct key_id key = fuzz_key();
    struct hello h = { .magic = HELLO_MAGIC };
    unsigned slot = input_byte(&in) % (DATAGRAM_SLOTS / 32);
    memcpy(of.process, fuzz_process[input_byte(&in) % PROCESSES], sizeof of.process);
    const struct endpoint *known = endpoint_find(&verbs_fabric, of.process);
    FUZZ_CHECK(endpoint_init_identity(&of, &end, verbs_fabric.process, verbs_fabric.life, &key) == TUTTI_OK);
    end.turn -= input_byte(&in) % 4;
    fabric_handshake_init(&of, &end, &h.handshake);
    h.lane_count = input_byte(&in) % 8 ? 1 : (uint32_t)(int8_t)input_byte(&in);
    h.stage = input_byte(&in) % 8 ? 0 : input_byte(&in) % 4;
    if (known && input_byte(&in) % 4) h.receiver_turn = known->turn;
    for (int changes = input_byte(&in) / 250; changes > 0; changes--) {
        size_t at = input_number(&in) % sizeof h;
        ((unsigned char *)&h)[at] = input_byte(&in);
    }
    if (input_byte(&in) != 255) proof_make(&end.pair_key, &h, PROVED_BYTES, h.proof);
    memcpy(nic.datagram_queue.memory + slot * SLOT_BYTES + ROUTE_BYTES, &h, sizeof h);
    uint32_t bytes = (uint32_t)(ROUTE_BYTES + sizeof h - (input_byte(&in) == 255));
    push((struct ibv_wc){
        .wr_id = slot, .byte_len = bytes, .qp_num = nic.datagram_queue.qp->qp_num, .opcode = IBV_WC_RECV });
}
/* Writes a message into the ring of an endpoint, usually behind the last consumed one, and delivers the completion of
   the write. Does nothing without a queue pair, because a device delivers nothing then. */
static void deliver_written(struct fuzz_rank *r)
{
    struct verbs_endpoint *e = some_endpoint();
    if (!e || !e->lane_count || !e->lanes[0].qp) return;
    unsigned char message[WRITTEN_MOST];
    struct header header = rank_header(r, &in);
    struct prefix prefix = { .consumed = e->ring.written, .kind = input_byte(&in) % 8 };
    if (prefix.kind > GOODBYE + 1) prefix.kind = header.id ? OFFER : EAGER;
    size_t bytes = sizeof prefix;
    uint64_t begin = e->ring.consumed;
    if (input_byte(&in) % 16 == 0) begin = input_byte(&in) << 10;
    struct offer offer = { .address = 64, .bytes = header.bytes, .id = input_byte(&in) % 4 };
    memcpy(message + bytes, &header, sizeof header);
    if (prefix.kind <= OFFER) bytes += sizeof header;
    memcpy(message + bytes, &offer, sizeof offer);
    if (prefix.kind == OFFER) bytes += sizeof offer;
    if (prefix.kind == DONE) bytes += sizeof offer.id;
    if (prefix.kind == EAGER) {
        size_t data = header.bytes < 256 ? (size_t)header.bytes : 255;
        memset(message + bytes, 7, data);
        bytes += data;
    }
    prefix.bytes = (uint32_t)(bytes - sizeof prefix);
    prefix.position = begin + size_round_up(bytes, RING_GRAIN);
    for (int changes = input_byte(&in) / 250; changes > 0; changes--) {
        size_t at = input_byte(&in) % sizeof prefix;
        ((unsigned char *)&prefix)[at] = input_byte(&in);
    }
    memcpy(message, &prefix, sizeof prefix);
    size_t offset = begin % RING_BYTES, room = RING_BYTES - offset;
    memcpy(e->ring.in + offset, message, bytes < room ? bytes : room);
    uint32_t grain = (uint32_t)(offset / RING_GRAIN);
    if (input_byte(&in) == 255) grain = (uint32_t)input_number(&in);
    push((struct ibv_wc){ .imm_data = htobe32(grain),
        .byte_len = (uint32_t)bytes,
        .qp_num = e->lanes[0].qp->qp_num,
        .opcode = IBV_WC_RECV_RDMA_WITH_IMM });
}
/* Delivers the completion of the last posted work request, which also completes those before it. */
static void deliver_completion(void)
{
    struct verbs_endpoint *e = some_endpoint();
    if (!e || !e->lanes[0].qp || e->lanes[0].posted_count == e->lanes[0].completed_count) return;
    push((struct ibv_wc){ .wr_id = verbs_endpoint_tag(e) << 32 | (e->lanes[0].posted_count - 1),
        .qp_num = e->lanes[0].qp->qp_num,
        .status = input_byte(&in) % 16 ? IBV_WC_SUCCESS : IBV_WC_RETRY_EXC_ERR,
        .opcode = IBV_WC_RDMA_WRITE });
}
static void take_step(struct fuzz_rank *r)
{
    switch ((enum step)(input_byte(&in) % STEP_COUNT)) {
    case HELLO:
    case HELLO_TOO: deliver_hello(); break;
    case WRITTEN:
    case WRITTEN_TOO: deliver_written(r); break;
    case COMPLETED: deliver_completion(); break;
    case RECEIVE: rank_post(r, &in, false); break;
    case SEND: rank_post(r, &in, true); break;
    case POLL: router_poll(r->router); break;
    case TIME_PASSES: simulated_ns += (int64_t)input_byte(&in) << 23; break;
    case STEP_COUNT: break;
    }
    router_poll(r->router);
}

/* ---- from beginning to end ---- */
int LLVMFuzzerInitialize(int *count, char ***arguments)
{
    (void)count;
    (void)arguments;
    ASAN_POISON_MEMORY_REGION(blocks, sizeof blocks);
    verbs.ibv_reg_mr = reg_mr;
    verbs.ibv_dereg_mr = dereg_mr;
    verbs.ibv_create_qp = create_qp;
    verbs.ibv_modify_qp = modify_qp;
    verbs.ibv_destroy_qp = destroy_qp;
    verbs.ibv_create_ah = create_ah;
    verbs.ibv_destroy_ah = destroy_ah;
    verbs.ibv_resize_cq = resize_cq;
    verbs.ibv_wc_status_str = status_text;
    context.ops.post_send = post_send;
    context.ops.post_recv = post_recv;
    context.ops.post_srq_recv = post_srq_recv;
    context.ops.poll_cq = poll_cq;
    return 0;
}
static void begin(struct fabric *fabric)
{
    static struct ibv_pd domain = { .context = &context };
    static struct ibv_cq completions = { .context = &context, .cqe = 1 << 20 };
    static struct ibv_srq receives = { .context = &context };
    devices.count = 1;
    devices.ports[0] = (struct device_port){ .name = "fuzzed:1", .context = &context, .number = 1 };
    devices.ports[0].mtu = IBV_MTU_4096;
    devices.ports[0].message_bytes = 1 << 30;
    nic = (struct nic){ .devices = &devices, .adapter_count = 1, .rail_count = 1, .receives = &receives };
    nic.adapters[0] = (struct adapter){ .port = devices.ports, .domain = &domain, .completions = &completions };
    nic.adapters[0].attributes.max_cqe = 1 << 20;
    nic.rails[0] = (struct rail){ devices.ports, nic.adapters };
    pairs_made = 0;
    coming_count = 0;
    struct input later = in;
    in.left = 0;
    FUZZ_CHECK(datagram_queue_init(fabric, &nic) == TUTTI_OK);
    in = later;
    fabric->state = &nic;
    fabric->address_bytes = sizeof(struct verbs_address);
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fabric *fabric = &verbs_fabric;
    struct fuzz_rank rank;
    in = (struct input){ data, size };
    *fabric = (struct fabric)FABRIC(&verbs_operations);
    begin(fabric);
    rank_init(&rank, fabric);
    for (int i = 0; i < STEPS && in.left; i++) take_step(&rank);
    rank_finish(&rank);
    pthread_mutex_lock(&fabric->lock);
    for (struct endpoint *e = fabric->endpoints; e; e = e->next)
        verbs_endpoint_fail(fabric, verbs_endpoint_of(e), "the end");
    for (struct saved_msg *msg; (msg = early_msgs_pop(fabric)) != NULL;) saved_msg_free(fabric, msg);
    verbs_endpoints_destroy(fabric);
    datagram_queue_finish(&nic);
    fabric_ops_free_all(fabric);
    pthread_mutex_unlock(&fabric->lock);
    for (int i = 0; i < BLOCKS; i++) FUZZ_CHECK(!block_used[i]);
    return 0;
}
