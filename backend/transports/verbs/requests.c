/* Posts the work requests of an endpoint: its first lane writes messages, and all lanes read large ones. The requests
 * of a lane complete in the order of their posts, so the completion of a signalled one covers all before it. */
#include "backend/base/memory.h"
#include "backend/transports/verbs/nic.h"
#include <endian.h>
#include <string.h>

bool lane_has_room(const struct lane *lane) { return lane->begun - lane->ended < SENDS; }
static uint64_t lane_record_request(struct lane *lane, bool signalled, struct posted posted)
{
    lane->posted[lane->begun % SENDS] = posted;
    if (signalled) lane->last_signalled = lane->begun;
    return verbs_endpoint_tag(lane->endpoint) << 32 | lane->begun++;
}
int verbs_endpoint_post_write(struct verbs_endpoint *endpoint, uint64_t begin, size_t bytes, bool signalled)
{
    struct eager_ring *ring = &endpoint->ring;
    struct lane *lane = &endpoint->lanes[0];
    uint64_t offset = begin % RING_BYTES;
    struct ibv_sge from = { (uintptr_t)(ring->out + offset), (uint32_t)bytes, ring->out_region->lkey };
    signalled |=
        lane->begun - lane->last_signalled >= SEND_SIGNALS || ring->written - ring->signalled >= RING_BYTES / 4;
    if (signalled) ring->signalled = ring->written;
    struct ibv_send_wr *bad,
        request = { .sg_list = &from,
            .num_sge = 1,
            .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
            .send_flags =
                (signalled ? IBV_SEND_SIGNALED : 0u) | (bytes <= endpoint->inline_bytes ? IBV_SEND_INLINE : 0u),
            .imm_data = htobe32((uint32_t)(offset / RING_GRAIN)),
            .wr.rdma = { .remote_addr = ring->there + offset, .rkey = ring->there_key } };
    request.wr_id = lane_record_request(lane, signalled, (struct posted){ .position = ring->written });
    return ibv_post_send(lane->pair, &request, &bad);
}

/* ---- reads ---- */
static unsigned lane_reads_that_fit(const struct lane *lane)
{
    /* Reads use at most half of the queue, so that messages can still be sent. */
    unsigned open = lane->begun - lane->ended, room = open < SENDS / 2 ? SENDS / 2 - open : 0;
    return room < READS_AT_ONCE ? room : READS_AT_ONCE;
}
/* Posts reads of up to `share` more bytes of a fetch, in one doorbell whose last request is signalled. */
static int lane_post_reads(struct lane *lane, struct verbs_xfer *fetch, size_t share)
{
    struct ibv_send_wr list[READS_AT_ONCE], *bad;
    struct ibv_sge into[READS_AT_ONCE];
    const struct rail *rail = lane->rail;
    uint32_t here = fetch->memory[rail->adapter->index].region->lkey;
    uint32_t there = fetch->offer.keys[lane - lane->endpoint->lanes];
    size_t most = size_smaller(READ_BYTES, rail->port->message_bytes);
    size_t end = size_smaller(fetch->asked + share, (size_t)fetch->offer.bytes);
    unsigned count = 0, fit = lane_reads_that_fit(lane);
    for (; count < fit && fetch->asked < end; count++) {
        size_t at = fetch->asked, part = size_smaller(most, end - at);
        fetch->asked += part;
        bool last = fetch->asked == end || count + 1 == fit;
        into[count] = (struct ibv_sge){ (uintptr_t)fetch->into + at, (uint32_t)part, here };
        list[count] = (struct ibv_send_wr){ .sg_list = &into[count],
            .num_sge = 1,
            .opcode = IBV_WR_RDMA_READ,
            .send_flags = last ? IBV_SEND_SIGNALED : 0u,
            .wr.rdma = { .remote_addr = fetch->offer.at + at, .rkey = there } };
        list[count].wr_id = lane_record_request(lane, last,
            (struct posted){ .fetch = last ? fetch : NULL, .position = lane->endpoint->ring.written });
        if (count > 0) list[count - 1].next = &list[count];
    }
    if (count == 0) return 0;
    fetch->open++;
    return ibv_post_send(lane->pair, list, &bad);
}
/* Each lane in turn reads an equal part of the remaining bytes; the next fetch starts with the next lane. */
int verbs_endpoint_post_reads(struct verbs_endpoint *endpoint, struct verbs_xfer *fetch)
{
    int error = 0;
    size_t bytes = (size_t)fetch->offer.bytes;
    for (int left = endpoint->lane_count; left > 0 && fetch->asked < bytes && !error; left--) {
        size_t share = size_round_up((bytes - fetch->asked - 1) / (size_t)left + 1, SHARE_BYTES);
        struct lane *lane = &endpoint->lanes[endpoint->next_lane];
        endpoint->next_lane = (endpoint->next_lane + 1) % endpoint->lane_count;
        error = lane_post_reads(lane, fetch, share);
    }
    return error;
}
struct verbs_xfer *lane_complete_request(struct lane *lane, unsigned request)
{
    struct verbs_xfer *fetch = NULL;
    struct verbs_endpoint *endpoint = lane->endpoint;
    while (lane->ended != request + 1) {
        const struct posted *posted = &lane->posted[lane->ended++ % SENDS];
        if (lane == endpoint->lanes) endpoint->ring.sent = posted->position;
        fetch = posted->fetch;
    }
    if (!fetch) return NULL;
    fetch->open--;
    return fetch->open == 0 && fetch->asked == fetch->offer.bytes ? fetch : NULL;
}
