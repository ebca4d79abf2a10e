/* Posts the work requests of an endpoint: its first lane writes messages, and all lanes read large ones. The requests
 * of a lane complete in the order of their posts, so the completion of a signalled one covers all before it. */
#include "backend/base/memory.h"
#include "backend/transports/verbs/nic.h"
#include <endian.h>
#include <string.h>

bool lane_has_room(const struct lane *lane) { return lane->posted_count - lane->completed_count < SENDS; }
/* Records a work request that is about to be posted, and returns its wr_id: the tag of the endpoint in the upper half,
   and the number of the request. */
static uint64_t lane_record_request(struct lane *lane, bool is_signalled, struct posted_request posted)
{
    lane->requests[lane->posted_count % SENDS] = posted;
    if (is_signalled) lane->last_signalled = lane->posted_count;
    return verbs_endpoint_tag(lane->endpoint) << 32 | lane->posted_count++;
}
int verbs_endpoint_post_write(struct verbs_endpoint *endpoint, uint64_t begin, size_t bytes, bool is_signalled)
{
    struct eager_ring *ring = &endpoint->ring;
    struct lane *lane = &endpoint->lanes[0];
    uint64_t offset = begin % RING_BYTES;
    struct ibv_sge from = { (uintptr_t)(ring->out + offset), (uint32_t)bytes, ring->out_region->lkey };
    is_signalled |=
        lane->posted_count - lane->last_signalled >= SEND_SIGNALS || ring->written - ring->signalled >= RING_BYTES / 4;
    if (is_signalled) ring->signalled = ring->written;
    struct ibv_send_wr *bad,
        request = { .sg_list = &from,
            .num_sge = 1,
            .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
            .send_flags =
                (is_signalled ? IBV_SEND_SIGNALED : 0u) | (bytes <= endpoint->inline_bytes ? IBV_SEND_INLINE : 0u),
            .imm_data = htobe32((uint32_t)(offset / RING_GRAIN)),
            .wr.rdma = { .remote_addr = ring->peer_address + offset, .rkey = ring->peer_key } };
    request.wr_id = lane_record_request(lane, is_signalled, (struct posted_request){ .position = ring->written });
    return ibv_post_send(lane->qp, &request, &bad);
}

/* ---- reads ---- */
/* Returns how many reads can be posted now in one doorbell. Reads use at most half of the send queue, so that messages
   can still be sent. */
static unsigned lane_reads_that_fit(const struct lane *lane)
{
    unsigned open_count = lane->posted_count - lane->completed_count,
             room = open_count < SENDS / 2 ? SENDS / 2 - open_count : 0;
    return room < READS_AT_ONCE ? room : READS_AT_ONCE;
}
/* Posts reads of up to `share` more bytes of a fetch, in one doorbell whose last request is signalled. Returns 0, or
   the errno of the device. */
static int lane_post_reads(struct lane *lane, struct verbs_xfer *fetch, size_t share)
{
    struct ibv_send_wr list[READS_AT_ONCE], *bad;
    struct ibv_sge into[READS_AT_ONCE];
    const struct rail *rail = lane->rail;
    uint32_t local_key = fetch->memory[rail->adapter->index].region->lkey;
    uint32_t remote_key = fetch->offer.keys[lane - lane->endpoint->lanes];
    size_t limit = size_smaller(READ_BYTES, rail->port->message_bytes);
    size_t end = size_smaller(fetch->requested + share, (size_t)fetch->offer.bytes);
    unsigned count = 0, room = lane_reads_that_fit(lane);
    for (; count < room && fetch->requested < end; count++) {
        size_t offset = fetch->requested, bytes = size_smaller(limit, end - offset);
        fetch->requested += bytes;
        bool is_last = fetch->requested == end || count + 1 == room;
        into[count] = (struct ibv_sge){ (uintptr_t)fetch->into + offset, (uint32_t)bytes, local_key };
        list[count] = (struct ibv_send_wr){ .sg_list = &into[count],
            .num_sge = 1,
            .opcode = IBV_WR_RDMA_READ,
            .send_flags = is_last ? IBV_SEND_SIGNALED : 0u,
            .wr.rdma = { .remote_addr = fetch->offer.address + offset, .rkey = remote_key } };
        list[count].wr_id = lane_record_request(lane, is_last,
            (struct posted_request){ .fetch = is_last ? fetch : NULL, .position = lane->endpoint->ring.written });
        if (count > 0) list[count - 1].next = &list[count];
    }
    if (count == 0) return 0;
    fetch->open_doorbells++;
    return ibv_post_send(lane->qp, list, &bad);
}
/* Divides the bytes of a fetch for which no read is posted yet among the lanes, beginning with next_lane. Each lane
   posts reads of an equal share in one doorbell, or of as much as fits; then the next lanes get larger shares, and a
   later call posts what is left. */
int verbs_endpoint_post_reads(struct verbs_endpoint *endpoint, struct verbs_xfer *fetch)
{
    int error = 0;
    size_t bytes = (size_t)fetch->offer.bytes;
    for (int left = endpoint->lane_count; left > 0 && fetch->requested < bytes && !error; left--) {
        size_t share = size_round_up((bytes - fetch->requested - 1) / (size_t)left + 1, SHARE_BYTES);
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
    while (lane->completed_count != request + 1) {
        const struct posted_request *posted = &lane->requests[lane->completed_count++ % SENDS];
        if (lane == endpoint->lanes) endpoint->ring.sent = posted->position;
        fetch = posted->fetch;
    }
    if (!fetch) return NULL;
    fetch->open_doorbells--;
    return fetch->open_doorbells == 0 && fetch->requested == fetch->offer.bytes ? fetch : NULL;
}
