/* The queue pair of this process for datagrams (UD). The first half of its slots of memory receives, the second half
   sends. Datagrams may get lost, arrive late or arrive twice. */
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/transports/verbs/nic.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Returns the memory of a slot by its number. */
static unsigned char *datagram_slot_at(const struct datagram_queue *queue, unsigned slot)
{
    return queue->memory + (size_t)slot * SLOT_BYTES;
}
/* Posts a receive into this slot. false: the device refuses, and errno has the reason. */
static bool datagram_slot_post_receive(const struct datagram_queue *queue, unsigned slot)
{
    struct ibv_sge into = { (uintptr_t)datagram_slot_at(queue, slot), SLOT_BYTES, queue->region->lkey };
    struct ibv_recv_wr *bad, request = { .wr_id = slot, .sg_list = &into, .num_sge = 1 };
    errno = ibv_post_recv(queue->qp, &request, &bad);
    return errno == 0;
}
/* Returns the Q_Key of datagrams to a process; its device drops datagrams with another one. The key follows from the
   nonce of the process, which keeps out datagrams of other programs; only the proof gives security. The highest bit is
   reserved for privileged programs. */
static uint32_t datagram_key_of_process(const unsigned char process[16])
{
    uint32_t key;
    memcpy(&key, process, sizeof key);
    return key & INT32_MAX;
}
/* Moves the UD queue pair through the states INIT and RTR to RTS, in which it can send. */
static tutti_status datagram_queue_make_ready(const struct fabric *fabric, const struct nic *nic)
{
    struct ibv_qp *qp = nic->datagram_queue.qp;
    struct ibv_qp_attr attributes = { .qp_state = IBV_QPS_INIT,
        .port_num = nic_message_port(nic)->number,
        .qkey = datagram_key_of_process(fabric->process) };
    errno = verbs.ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
    if (errno) return device_port_fail_call(nic_message_port(nic), "datagram queue pair");
    attributes = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR };
    errno = verbs.ibv_modify_qp(qp, &attributes, IBV_QP_STATE);
    if (errno) return device_port_fail_call(nic_message_port(nic), "datagram queue pair in state RTR");
    attributes = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = nic->psn & 0xffffff };
    errno = verbs.ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN);
    return errno ? device_port_fail_call(nic_message_port(nic), "datagram queue pair in state RTS") : TUTTI_OK;
}
tutti_status datagram_queue_init(const struct fabric *fabric, struct nic *nic)
{
    struct datagram_queue *queue = &nic->datagram_queue;
    size_t bytes = (size_t)2 * DATAGRAM_SLOTS * SLOT_BYTES;
    const struct adapter *adapter = &nic->adapters[0];
    struct ibv_qp_init_attr attributes = { .send_cq = adapter->completions,
        .recv_cq = adapter->completions,
        .qp_type = IBV_QPT_UD,
        .sq_sig_all = 1,
        .cap = { .max_send_wr = DATAGRAM_SLOTS, .max_recv_wr = DATAGRAM_SLOTS, .max_send_sge = 1, .max_recv_sge = 1 } };
    queue->memory = memory_alloc_aligned(bytes);
    if (!queue->memory) return status_fail(TUTTI_NO_MEMORY, "no memory for datagrams");
    queue->region = verbs.ibv_reg_mr(adapter->domain, queue->memory, bytes, IBV_ACCESS_LOCAL_WRITE);
    if (!queue->region) return device_port_fail_call(nic_message_port(nic), "memory for datagrams");
    queue->qp = verbs.ibv_create_qp(adapter->domain, &attributes);
    if (!queue->qp) return device_port_fail_call(nic_message_port(nic), "datagram queue pair");
    TRY(datagram_queue_make_ready(fabric, nic));
    for (unsigned slot = 0; slot < DATAGRAM_SLOTS; slot++) {
        if (!datagram_slot_post_receive(queue, slot))
            return device_port_fail_call(nic_message_port(nic), "receive for datagrams");
        queue->free_slots[queue->free_count++] = DATAGRAM_SLOTS + slot;
    }
    return TUTTI_OK;
}
void datagram_queue_finish(struct nic *nic)
{
    struct datagram_queue *queue = &nic->datagram_queue;
    if (queue->qp) verbs.ibv_destroy_qp(queue->qp);
    if (queue->region) verbs.ibv_dereg_mr(queue->region);
    free(queue->memory);
    *queue = (struct datagram_queue){ .region = NULL };
}

/* ---- sending and receiving ---- */
void datagram_queue_send(struct datagram_queue *queue, const struct verbs_endpoint *to, const void *datagram,
    size_t bytes)
{
    unsigned slot = queue->free_slots[--queue->free_count];
    memcpy(datagram_slot_at(queue, slot), datagram, bytes);
    struct ibv_sge from = { (uintptr_t)datagram_slot_at(queue, slot), (uint32_t)bytes, queue->region->lkey };
    struct ibv_send_wr *bad,
        request = { .wr_id = slot,
            .sg_list = &from,
            .num_sge = 1,
            .opcode = IBV_WR_SEND,
            .send_flags = IBV_SEND_SIGNALED,
            .wr.ud = { .ah = to->address_handle,
                .remote_qpn = to->address.qp_number,
                .remote_qkey = datagram_key_of_process(to->base.process) } };
    if (ibv_post_send(queue->qp, &request, &bad) != 0) queue->free_slots[queue->free_count++] = slot;
}
bool datagram_queue_complete(struct datagram_queue *queue, const struct ibv_wc *wc, void *out, size_t bytes)
{
    unsigned slot = (unsigned)wc->wr_id;
    if (slot >= DATAGRAM_SLOTS) {
        queue->free_slots[queue->free_count++] = slot;
        return false;
    }
    bool is_whole = wc->status == IBV_WC_SUCCESS && wc->byte_len == ROUTE_BYTES + bytes;
    if (is_whole) memcpy(out, datagram_slot_at(queue, slot) + ROUTE_BYTES, bytes);
    if (wc->status == IBV_WC_SUCCESS && !datagram_slot_post_receive(queue, slot))
        LOG(ERROR, "datagrams can no longer be received");
    return is_whole;
}
