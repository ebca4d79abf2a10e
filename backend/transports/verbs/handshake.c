/* The handshake of two processes. Each sends HELLO by datagram with its queue pairs and its eager ring, and repeats it
 * until a HELLO of the other shows that its own has arrived. Datagrams may get lost, arrive late or arrive twice. So
 * each endpoint has a turn, and a HELLO names the known turns of both ends. By these the receiver recognizes a HELLO of
 * an endpoint that has broken since. A proof covers the whole message (fabric/proofs.c). A process ignores a HELLO with
 * a wrong proof, or for another process. */
#include "backend/transports/verbs/handshake.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/transports/verbs/nic.h"
#include <string.h>

enum { REPEAT_MS = 5, REPEAT_MOST_MS = 200 };

/* ---- sending ---- */
/* Sends HELLO with this process's queue pairs and eager ring, unless all send slots are in use. Datagrams may get lost,
   so the caller repeats it. */
static void verbs_endpoint_send_hello(struct fabric *fabric, struct verbs_endpoint *endpoint,
    enum handshake_stage stage)
{
    struct nic *nic = nic_of_fabric(fabric);
    struct datagram_queue *queue = &nic->datagram_queue;
    if (!queue->free_count) return;
    struct hello hello = { .receiver_turn = endpoint->peer_turn,
        .ring = (uintptr_t)endpoint->ring.in,
        .ring_key = endpoint->ring.in_region->rkey,
        .psn = nic->psn & 0xffffff,
        .stage = stage,
        .address = nic_address(fabric),
        .lane_count = (uint32_t)nic->rail_count };
    for (int i = 0; i < nic->rail_count && stage != ENDPOINT_CLOSED; i++)
        hello.lanes[i] = verbs_qp_address(&nic->rails[i], endpoint->lanes[i].qp);
    memcpy(hello.magic, HELLO_MAGIC, sizeof hello.magic);
    fabric_handshake_init(fabric, &endpoint->base, &hello.handshake);
    proof_make(&endpoint->base.pair_key, &hello, PROVED_BYTES, hello.proof);
    datagram_queue_send(queue, endpoint, &hello, sizeof hello);
}
/* Sends HELLO if the peer needs an answer, or if the last one was repeat_ms ago. The delay grows up to
   REPEAT_MOST_MS. */
static void verbs_endpoint_advance_handshake(struct fabric *fabric, struct verbs_endpoint *endpoint, int64_t now_ms)
{
    if (!endpoint->owes_answer && now_ms - endpoint->hello_ms < endpoint->repeat_ms) return;
    if (!endpoint->owes_answer)
        endpoint->repeat_ms =
            endpoint->repeat_ms < REPEAT_MOST_MS / 2 ? 2 * endpoint->repeat_ms + REPEAT_MS : REPEAT_MOST_MS;
    endpoint->owes_answer = false;
    endpoint->hello_ms = now_ms;
    verbs_endpoint_send_hello(fabric, endpoint, endpoint->base.is_open ? OPEN : CONNECTING);
}
/* If this HELLO is lost, this process sends another one in answer to the peer's next HELLO, or the peer's writes fail
   after the retries. */
void verbs_endpoint_send_closed(struct fabric *fabric, struct verbs_endpoint *endpoint)
{
    verbs_endpoint_send_hello(fabric, endpoint, ENDPOINT_CLOSED);
}
void verbs_advance_handshakes(struct fabric *fabric)
{
    int64_t now_ms = clock_ms();
    fabric->needs_poll = false;
    for (struct endpoint *base = fabric->endpoints; base; base = base->next) {
        if (endpoint_is_broken(base) || base->has_left) continue;
        if (!base->is_open || verbs_endpoint_of(base)->owes_answer)
            verbs_endpoint_advance_handshake(fabric, verbs_endpoint_of(base), now_ms);
        fabric->needs_poll |= !base->is_open;
    }
}

/* ---- receiving ---- */
/* Returns the broken endpoint that a HELLO belongs to, or NULL. It belongs to an endpoint whose turn it names, or which
   the device has refused to connect with the sender's endpoint. */
static struct verbs_endpoint *hello_find_broken_endpoint(const struct fabric *fabric, const struct hello *hello)
{
    for (struct endpoint *base = fabric->endpoints; base; base = base->next) {
        struct verbs_endpoint *endpoint = verbs_endpoint_of(base);
        bool is_meant = hello->receiver_turn == base->turn
            || (endpoint->connect_failed && endpoint->peer_turn == hello->handshake.turn);
        if (endpoint_is_broken(base) && is_meant && memcmp(base->process, hello->handshake.from, 16) == 0)
            return endpoint;
    }
    return NULL;
}
/* Returns the endpoint that a HELLO is for, created if needed. NULL: the HELLO belongs to an endpoint that has broken
   (the function then answers ENDPOINT_CLOSED) or was replaced, or no endpoint can be created. */
static struct verbs_endpoint *hello_get_endpoint(struct fabric *fabric, const struct hello *hello)
{
    const struct fabric_handshake *handshake = &hello->handshake;
    struct endpoint *found = endpoint_find(fabric, handshake->from);
    struct verbs_endpoint *endpoint = found ? verbs_endpoint_of(found) : NULL;
    struct verbs_endpoint *ended = hello_find_broken_endpoint(fabric, hello);
    if (ended) {
        ended->peer_turn = handshake->turn;
        verbs_endpoint_send_closed(fabric, ended);
    }
    if (ended || (hello->receiver_turn && (!endpoint || hello->receiver_turn != found->turn))) return NULL;
    /* The peer has replaced the endpoint that this process knew. */
    if (endpoint && !hello->receiver_turn && endpoint->peer_turn && endpoint->peer_turn != handshake->turn) {
        verbs_endpoint_fail(fabric, endpoint, "the other process has connected again");
        endpoint = NULL;
    }
    /* If no endpoint can be created, the ranks' own sends to that process report the reason. */
    if (!endpoint
        && verbs_endpoint_create(fabric, handshake->from, &handshake->key, &hello->address, &endpoint) != TUTTI_OK)
        return NULL;
    endpoint->base.least_turn = handshake->turn;
    return endpoint;
}
/* Returns the number of lanes that this process and the sender of a HELLO have in common. Lane k of one process
   connects to lane k of the other, up to the first k where one is InfiniBand and the other RoCE. Both processes get the
   same number. */
static int hello_count_common_lanes(const struct nic *nic, const struct hello *hello)
{
    int count = 0;
    while (count < nic->rail_count && (uint32_t)count < hello->lane_count
        && hello->lanes[count].is_ethernet == nic->rails[count].port->is_ethernet)
        count++;
    return count;
}
/* Connects the common lanes to the queue pairs of the peer's HELLO, and stores the address of the peer's eager ring. */
static tutti_status verbs_endpoint_connect_lanes(struct nic *nic, struct verbs_endpoint *endpoint,
    const struct hello *hello)
{
    int count = hello_count_common_lanes(nic, hello);
    endpoint->peer_turn = hello->handshake.turn;
    endpoint->ring.peer_address = hello->ring;
    endpoint->ring.peer_key = hello->ring_key;
    for (int i = 0; i < count; i++) TRY(lane_connect(nic, &endpoint->lanes[i], &hello->lanes[i], hello->psn));
    if (count == 0) return verbs_fail_link_layers(nic);
    endpoint->lane_count = count;
    return TUTTI_OK;
}
/* Handles a HELLO of stage ENDPOINT_CLOSED: fails the endpoint that the peer has closed. */
static void hello_handle_closed(struct fabric *fabric, const struct hello *hello)
{
    struct endpoint *endpoint = endpoint_find(fabric, hello->handshake.from);
    if (!endpoint) return;
    uint64_t known = verbs_endpoint_of(endpoint)->peer_turn;
    if (known ? known != hello->handshake.turn : hello->receiver_turn != endpoint->turn) return;
    endpoint->least_turn = hello->handshake.turn + 1;
    verbs_endpoint_fail(fabric, verbs_endpoint_of(endpoint), "the other process has closed it");
}
/* Returns whether a received HELLO is of this version, proved, and not outdated. */
static bool hello_is_valid(struct fabric *fabric, const struct hello *hello)
{
    return memcmp(hello->magic, HELLO_MAGIC, sizeof hello->magic) == 0 && hello->lane_count > 0
        && fabric_handshake_is_proved(fabric, &hello->handshake, hello, PROVED_BYTES, hello->proof)
        && !fabric_handshake_is_outdated(fabric, &hello->handshake);
}
void verbs_handle_hello(struct fabric *fabric, const struct hello *hello)
{
    if (!hello_is_valid(fabric, hello)) return;
    if (hello->stage == ENDPOINT_CLOSED) {
        hello_handle_closed(fabric, hello);
        return;
    }
    struct verbs_endpoint *endpoint = hello_get_endpoint(fabric, hello);
    if (!endpoint) return;
    if (endpoint->lane_count == 0 && verbs_endpoint_connect_lanes(nic_of_fabric(fabric), endpoint, hello) != TUTTI_OK) {
        LOG(ERROR, "%s", status_detail());
        endpoint->connect_failed = true;
        verbs_endpoint_send_closed(fabric, endpoint);
        verbs_endpoint_fail(fabric, endpoint, "the device does not connect");
        return;
    }
    /* A HELLO that names this endpoint's turn shows that the peer is ready to receive. */
    if (!endpoint->base.is_open && hello->receiver_turn == endpoint->base.turn) {
        endpoint->base.is_open = true;
        /* Messages that came before the endpoint was open may fill its eager ring and need an acknowledgement. */
        nic_of_fabric(fabric)->needs_progress = true;
    }
    endpoint->owes_answer |= hello->stage != OPEN;
    fabric->needs_poll |= endpoint->owes_answer;
}
void verbs_handle_datagram(struct fabric *fabric, const struct ibv_wc *wc)
{
    struct hello hello;
    if (datagram_queue_complete(&nic_of_fabric(fabric)->datagram_queue, wc, &hello, sizeof hello))
        verbs_handle_hello(fabric, &hello);
}
