/* Measures RDMA writes of 8 bytes between two hosts, the reference for small messages over verbs. One reliable
 * connection carries inline writes with immediate, and both ends poll without a pause.
 *
 *   writes DEVICE GID_INDEX serve PORT          waits for the other end
 *   writes DEVICE GID_INDEX ask ADDRESS PORT    prints "latency NS", half a round trip, and "swap NS", in which each
 *                                               end writes and then waits for the other's write, as in an
 *                                               all-reduce of two ranks; both are medians of batches */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SMALL = 8, DEPTH = 256, SIGNAL_EVERY = 32, BATCHES = 21, BATCH = 50 };
/* An end of the connection, as it is sent to the other end. `packet` is the first packet sequence number. */
struct end {
    union ibv_gid gid;
    uint64_t address;
    uint32_t key, pair, packet;
};
struct side {
    struct ibv_context *device;
    struct ibv_pd *domain;
    struct ibv_mr *region;
    struct ibv_cq *completions;
    struct ibv_qp *pair;
    struct end mine, theirs;
    unsigned char memory[64];
    /* The numbers of writes sent to the other end and received from it. */
    unsigned sent, received;
    int index;
};

static _Noreturn void give_up(const char *what)
{
    perror(what);
    exit(1);
}
static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* ---- the connection ---- */
/* Posts a receive for one more write of the other end. */
static void post_receive(struct side *s)
{
    struct ibv_recv_wr *bad, request = { 0 };
    if (ibv_post_recv(s->pair, &request, &bad)) give_up("ibv_post_recv");
}
static void open_device(struct side *s, const char *name)
{
    struct ibv_device **all = ibv_get_device_list(NULL);
    for (int i = 0; all && all[i] && !s->device; i++)
        if (strcmp(ibv_get_device_name(all[i]), name) == 0) s->device = ibv_open_device(all[i]);
    if (!s->device) give_up(name);
    s->domain = ibv_alloc_pd(s->device);
    s->region = ibv_reg_mr(s->domain, s->memory, sizeof s->memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    s->completions = ibv_create_cq(s->device, 2 * DEPTH, NULL, NULL, 0);
    struct ibv_qp_init_attr wanted = { .send_cq = s->completions,
        .recv_cq = s->completions,
        .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = DEPTH,
            .max_recv_wr = DEPTH,
            .max_send_sge = 1,
            .max_recv_sge = 1,
            .max_inline_data = SMALL } };
    s->pair = ibv_create_qp(s->domain, &wanted);
    if (!s->region || !s->pair) give_up("a queue pair");
    s->mine = (struct end){ .address = (uintptr_t)s->memory, .key = s->region->rkey, .pair = s->pair->qp_num };
    if (ibv_query_gid(s->device, 1, s->index, &s->mine.gid)) give_up("ibv_query_gid");
}
static void connect_pair(struct side *s)
{
    struct ibv_port_attr port;
    if (ibv_query_port(s->device, 1, &port)) give_up("ibv_query_port");
    struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
    if (ibv_modify_qp(s->pair, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
        give_up("INIT");
    for (int i = 0; i < DEPTH; i++) post_receive(s);
    a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR,
        .path_mtu = port.active_mtu,
        .dest_qp_num = s->theirs.pair,
        .rq_psn = s->theirs.packet,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = { .is_global = 1,
            .port_num = 1,
            .dlid = port.lid,
            .grh = { .dgid = s->theirs.gid, .sgid_index = (uint8_t)s->index, .hop_limit = 64 } } };
    if (ibv_modify_qp(s->pair, &a,
            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER))
        give_up("RTR");
    a = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1
    };
    if (ibv_modify_qp(s->pair, &a,
            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
                | IBV_QP_MAX_QP_RD_ATOMIC))
        give_up("RTS");
}
/* Connects to the other end at that address, or with NULL waits for its connection. Returns the socket. */
static int socket_to_other(const char *address, const char *port)
{
    int one = 1, s = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port)) };
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (address && inet_pton(AF_INET, address, &at.sin_addr) == 1) {
        if (connect(s, (struct sockaddr *)&at, sizeof at)) give_up("connect");
        return s;
    }
    if (bind(s, (struct sockaddr *)&at, sizeof at) || listen(s, 1)) give_up("listen");
    printf("ready\n");
    fflush(stdout);
    return accept(s, NULL, NULL);
}
/* Sends `mine` to the other end, and receives `theirs`. */
static void socket_exchange(int socket, const void *mine, void *theirs, size_t bytes)
{
    if (send(socket, mine, bytes, 0) != (ssize_t)bytes) give_up("send");
    if (recv(socket, theirs, bytes, MSG_WAITALL) != (ssize_t)bytes) give_up("recv");
}

/* ---- writes ---- */
static void write_post(struct side *s)
{
    uint64_t content = s->sent;
    struct ibv_sge from = { .addr = (uintptr_t)&content, .length = SMALL };
    struct ibv_send_wr *bad,
        request = { .sg_list = &from,
            .num_sge = 1,
            .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
            .send_flags = IBV_SEND_INLINE | (++s->sent % SIGNAL_EVERY ? 0 : IBV_SEND_SIGNALED),
            .wr.rdma = { .remote_addr = s->theirs.address, .rkey = s->theirs.key } };
    if (ibv_post_send(s->pair, &request, &bad)) give_up("ibv_post_send");
}
/* Waits for one write of the other end. */
static void write_await(struct side *s)
{
    for (unsigned before = s->received; s->received == before;) {
        struct ibv_wc done;
        int count = ibv_poll_cq(s->completions, 1, &done);
        if (count < 0 || (count && done.status != IBV_WC_SUCCESS)) give_up("ibv_poll_cq");
        if (!count || done.opcode != IBV_WC_RECV_RDMA_WITH_IMM) continue;
        s->received++;
        post_receive(s);
    }
}
/* Does one swap, or one round trip, which the end with `asks` begins. */
static void exchange_once(struct side *s, int swaps, int asks)
{
    if (swaps || asks) write_post(s);
    write_await(s);
    if (!swaps && !asks) write_post(s);
}
static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
/* Returns the median over batches of the time of one exchange in ns. */
static double median_ns(struct side *s, int swaps, int asks)
{
    double ns[BATCHES];
    for (int i = 0; i < BATCHES; i++) {
        double begin = now_ns();
        for (int k = 0; k < BATCH; k++) exchange_once(s, swaps, asks);
        ns[i] = (now_ns() - begin) / BATCH;
    }
    qsort(ns, BATCHES, sizeof *ns, ascending);
    return ns[BATCHES / 2];
}
int main(int count, char **words)
{
    static struct side s;
    int asks = count == 6 && strcmp(words[3], "ask") == 0;
    if (!asks && (count != 5 || strcmp(words[3], "serve") != 0)) {
        fprintf(stderr, "writes DEVICE GID_INDEX serve PORT | ask ADDRESS PORT\n");
        return 2;
    }
    s.index = atoi(words[2]);
    open_device(&s, words[1]);
    int socket = socket_to_other(asks ? words[4] : NULL, words[asks ? 5 : 4]);
    char mine = 0, theirs;
    socket_exchange(socket, &s.mine, &s.theirs, sizeof s.mine);
    connect_pair(&s);
    /* Afterwards both ends can receive. */
    socket_exchange(socket, &mine, &theirs, 1);
    double there_and_back = median_ns(&s, 0, asks), swap = median_ns(&s, 1, asks);
    socket_exchange(socket, &mine, &theirs, 1);
    if (asks) printf("latency %.0f\nswap %.0f\n", there_and_back / 2, swap);
    return 0;
}
