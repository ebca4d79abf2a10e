/* The handshake of two processes. Both send HELLO by datagram with their queue pairs and their eager ring, and repeat
 * it until the peer's HELLO shows that it has received theirs. Datagrams may get lost, arrive late or arrive twice. So
 * each endpoint has a turn, and a HELLO names the known turns of both ends; the receiver recognizes a HELLO of an
 * endpoint that has broken since. A proof covers the whole message (fabric/proofs.c). A process ignores a HELLO with a
 * wrong proof, or for another process. */
#include "backend/transports/verbs/handshake.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/transports/verbs/nic.h"
#include <string.h>

enum { REPEAT_MS = 5, REPEAT_MOST_MS = 200 };

/* ---- sending ---- */
/* Sends a handshake datagram with this process's queue pairs and ring. Datagrams may be lost, so the caller repeats it.
   */
static void verbs_endpoint_send_hello(struct fabric *fabric, struct verbs_endpoint *endpoint,
    enum handshake_stage stage)
{
    struct nic *nic = nic_of_fabric(fabric);
    struct datagram_queue *queue = &nic->datagram_queue;
    /* If all slots are in use, the caller tries again later. */
    if (!queue->free_count) return;
    struct hello hello = { .theirs = endpoint->theirs,
        .ring = (uintptr_t)endpoint->ring.in,
        .ring_key = endpoint->ring.in_region->rkey,
        .psn = nic->psn & 0xffffff,
        .stage = stage,
        .address = nic_address(fabric),
        .lane_count = (uint32_t)nic->rail_count };
    for (int i = 0; i < nic->rail_count && stage != ENDPOINT_CLOSED; i++)
        hello.lanes[i] = verbs_qp_address(&nic->rails[i], endpoint->lanes[i].pair);
    memcpy(hello.magic, HELLO_MAGIC, sizeof hello.magic);
    fabric_handshake_init(fabric, &endpoint->base, &hello.handshake);
    proof_make(&endpoint->base.pair, &hello, PROVED_BYTES, hello.proof);
    datagram_queue_send(queue, endpoint, &hello, sizeof hello);
}
/* Sends HELLO if the peer needs an answer, or if the time for a repetition has come. */
static void verbs_endpoint_advance_handshake(struct fabric *fabric, struct verbs_endpoint *endpoint, int64_t now_ms)
{
    if (!endpoint->owes_answer && now_ms - endpoint->hello_ms < endpoint->repeat_ms) return;
    if (!endpoint->owes_answer)
        endpoint->repeat_ms =
            endpoint->repeat_ms < REPEAT_MOST_MS / 2 ? 2 * endpoint->repeat_ms + REPEAT_MS : REPEAT_MOST_MS;
    endpoint->owes_answer = false;
    endpoint->hello_ms = now_ms;
    verbs_endpoint_send_hello(fabric, endpoint, endpoint->base.open ? OPEN : CONNECTING);
}
/* If this HELLO is lost, the peer gets another one after its own next HELLO, or its writes fail after the retries. */
void verbs_endpoint_send_closed(struct fabric *fabric, struct verbs_endpoint *endpoint)
{
    verbs_endpoint_send_hello(fabric, endpoint, ENDPOINT_CLOSED);
}
void verbs_advance_handshakes(struct fabric *fabric)
{
    int64_t now_ms = clock_ms();
    fabric->needs_poll = false;
    for (struct endpoint *b = fabric->endpoints; b; b = b->next) {
        if (endpoint_is_broken(b) || b->left) continue;
        if (!b->open || verbs_endpoint_of(b)->owes_answer)
            verbs_endpoint_advance_handshake(fabric, verbs_endpoint_of(b), now_ms);
        fabric->needs_poll |= !b->open;
    }
}

/* ---- receiving ---- */
/* Finds the broken endpoint that a HELLO belongs to: the HELLO answers it, or the device has refused to connect it with
   the sender's endpoint. */
static struct verbs_endpoint *hello_find_broken_endpoint(const struct fabric *fabric, const struct hello *h)
{
    for (struct endpoint *b = fabric->endpoints; b; b = b->next) {
        struct verbs_endpoint *endpoint = verbs_endpoint_of(b);
        bool its = h->theirs == b->turn || (endpoint->connect_failed && endpoint->theirs == h->handshake.turn);
        if (endpoint_is_broken(b) && its && memcmp(b->process, h->handshake.from, 16) == 0) return endpoint;
    }
    return NULL;
}
/* Returns the endpoint that a HELLO is for, created if needed. NULL: the HELLO is outdated, or answered by CLOSED. */
static struct verbs_endpoint *hello_get_endpoint(struct fabric *fabric, const struct hello *h)
{
    const struct fabric_handshake *g = &h->handshake;
    struct endpoint *found = endpoint_find(fabric, g->from);
    struct verbs_endpoint *endpoint = found ? verbs_endpoint_of(found) : NULL;
    struct verbs_endpoint *ended = hello_find_broken_endpoint(fabric, h);
    if (ended) {
        ended->theirs = g->turn;
        verbs_endpoint_send_closed(fabric, ended);
    }
    if (ended || (h->theirs && (!endpoint || h->theirs != found->turn))) return NULL;
    /* The peer has replaced the endpoint that this process knew. */
    if (endpoint && !h->theirs && endpoint->theirs && endpoint->theirs != g->turn) {
        verbs_endpoint_fail(fabric, endpoint, "the other process has connected again");
        endpoint = NULL;
    }
    /* If no endpoint can be created, the ranks' own sends to that process report the reason. */
    if (!endpoint && verbs_endpoint_create(fabric, g->from, &g->key, &h->address, &endpoint) != TUTTI_OK) return NULL;
    endpoint->base.least_turn = g->turn;
    return endpoint;
}
/* Lanes pair up in order, and the first pair of InfiniBand with RoCE ends the list. Both processes count the same. */
static int hello_count_common_lanes(const struct nic *nic, const struct hello *h)
{
    int count = 0;
    while (count < nic->rail_count && (uint32_t)count < h->lane_count
        && h->lanes[count].ethernet == nic->rails[count].port->ethernet)
        count++;
    return count;
}
/* Connects the queue pairs to those of the peer's HELLO. */
static tutti_status verbs_endpoint_connect_lanes(struct nic *nic, struct verbs_endpoint *endpoint,
    const struct hello *h)
{
    int count = hello_count_common_lanes(nic, h);
    endpoint->theirs = h->handshake.turn;
    endpoint->ring.there = h->ring;
    endpoint->ring.there_key = h->ring_key;
    for (int i = 0; i < count; i++) TRY(lane_connect(nic, &endpoint->lanes[i], &h->lanes[i], h->psn));
    if (count == 0) return verbs_fail_link_layers(nic);
    endpoint->lane_count = count;
    return TUTTI_OK;
}
/* Fails the endpoint that the peer has closed. */
static void hello_handle_closed(struct fabric *fabric, const struct hello *h)
{
    struct endpoint *endpoint = endpoint_find(fabric, h->handshake.from);
    if (!endpoint) return;
    uint64_t known = verbs_endpoint_of(endpoint)->theirs;
    if (known ? known != h->handshake.turn : h->theirs != endpoint->turn) return;
    endpoint->least_turn = h->handshake.turn + 1;
    verbs_endpoint_fail(fabric, verbs_endpoint_of(endpoint), "the other process has closed it");
}
static bool hello_is_valid(struct fabric *fabric, const struct hello *h)
{
    return memcmp(h->magic, HELLO_MAGIC, sizeof h->magic) == 0 && h->lane_count > 0
        && fabric_handshake_is_proved(fabric, &h->handshake, h, PROVED_BYTES, h->proof)
        && !fabric_handshake_is_outdated(fabric, &h->handshake);
}
void verbs_handle_hello(struct fabric *fabric, const struct hello *h)
{
    if (!hello_is_valid(fabric, h)) return;
    if (h->stage == ENDPOINT_CLOSED) {
        hello_handle_closed(fabric, h);
        return;
    }
    struct verbs_endpoint *endpoint = hello_get_endpoint(fabric, h);
    if (!endpoint) return;
    if (endpoint->lane_count == 0 && verbs_endpoint_connect_lanes(nic_of_fabric(fabric), endpoint, h) != TUTTI_OK) {
        LOG(ERROR, "%s", status_detail());
        endpoint->connect_failed = true;
        verbs_endpoint_send_closed(fabric, endpoint);
        verbs_endpoint_fail(fabric, endpoint, "the device does not connect");
        return;
    }
    /* A HELLO that names this endpoint's turn shows that the peer is ready to receive. */
    if (!endpoint->base.open && h->theirs == endpoint->base.turn) {
        endpoint->base.open = true;
        /* Messages that came before the endpoint was open may fill its eager ring and need an acknowledgement. */
        nic_of_fabric(fabric)->stalled = true;
    }
    endpoint->owes_answer |= h->stage != OPEN;
    fabric->needs_poll |= endpoint->owes_answer;
}
void verbs_handle_datagram(struct fabric *fabric, const struct ibv_wc *wc)
{
    struct hello hello;
    if (datagram_queue_complete(&nic_of_fabric(fabric)->datagram_queue, wc, &hello, sizeof hello))
        verbs_handle_hello(fabric, &hello);
}
