/* One exchange of messages between the first ranks of hosts. While it waits, it checks for a failure of the group and
   for ranks whose join is aborted. */
#include "backend/join/host_exchange.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/join/contacts.h"
#include "backend/join/shm_group.h"
#include <stdio.h>

enum { CHECK_EVERY = 64 };
int host_exchange_count_networks(const tutti_comm *comm)
{
    /* A transport that tests put in the place of a network counts as one. */
    int count = router_network_count(comm->router);
    return count ? count : 1;
}

/* ---- errors ---- */
/* Writes that another host has not exchanged messages `when`, as in "in time", and why that may be. */
static void host_exchange_format_late(const struct group *group, const struct transfer *transfer, const char *when,
    char out[STATUS_DETAIL_BYTES])
{
    char here[MEMBER_TEXT_BYTES], there[MEMBER_TEXT_BYTES];
    snprintf(out, STATUS_DETAIL_BYTES,
        "%s of %s has a link with %s, but has not %s %s: either that host waits for one of its ranks or for "
        "another host, or messages do not get through (a firewall: see TUTTI_PORTS; or the wrong interface: "
        "see TUTTI_SOCKET_IFNAME)",
        member_print(group, group->rank, here), group->name, member_print(group, transfer->peer, there),
        transfer->is_send ? "reached it by messages" : "received its report that it has joined", when);
}
/* Fails because another host did not exchange messages in time. */
static tutti_status host_exchange_fail_late(tutti_comm *comm, const struct transfer *transfer)
{
    char text[STATUS_DETAIL_BYTES];
    host_exchange_format_late(&comm->group, transfer, "in time", text);
    return comm_fail(comm, TUTTI_TIMEOUT, "%s", text);
}
/* Warns once, at *warn_ms, that another host has not exchanged messages for JOIN_WARN_MS: a firewall that drops packets
   gives no answer before the timeout. */
static void host_exchange_warn_late(const struct group *group, const struct transfer *transfer, int64_t *warn_ms)
{
    char text[STATUS_DETAIL_BYTES];
    if (clock_ms() < *warn_ms) return;
    *warn_ms = INT64_MAX;
    host_exchange_format_late(group, transfer, "within 10 s", text);
    LOG(WARN, "%s", text);
}
/* Fails because a message between hosts failed. */
static tutti_status host_exchange_fail_message(tutti_comm *comm, const struct transfer *transfer)
{
    const struct group *group = &comm->group;
    const char *reason = comm->router->reason;
    char here[MEMBER_TEXT_BYTES], there[MEMBER_TEXT_BYTES];
    return comm_fail(comm, transfer->status, "%s of %s cannot exchange messages with %s: %.300s",
        member_print(group, group->rank, here), group->name, member_print(group, transfer->peer, there),
        *reason ? reason : status_message(transfer->status));
}

/* ---- waiting ---- */
/* Waits until a posted message is complete, and checks for failures and aborted joins meanwhile. */
static tutti_status host_exchange_await_transfer(tutti_comm *comm, const struct transfer *transfer, int64_t deadline_ms)
{
    int64_t warn_ms = clock_ms() + JOIN_WARN_MS;
    for (int n = 0;; n++) {
        /* The alert is read first, because a rank may join and abort right after. */
        bool is_alerted = comm_poll_reason_to_fail(comm);
        bool has_progressed = router_poll(comm->router);
        if (transfer->state == TRANSFER_DONE) return TUTTI_OK;
        if (is_alerted) TRY(comm_fail_if_due(comm));
        if (transfer->state == TRANSFER_FAILED && !comm_is_failing(comm))
            return host_exchange_fail_message(comm, transfer);
        if (n % CHECK_EVERY == 0) TRY(shm_group_check_join(&comm->group));
        if (clock_ms() > deadline_ms) return host_exchange_fail_late(comm, transfer);
        host_exchange_warn_late(&comm->group, transfer, &warn_ms);
        if (has_progressed) n = 0;
        else group_back_off(&comm->group, n);
    }
}
/* Cancels a transfer that is not complete, and waits until the router no longer uses its memory. */
static void host_exchange_end_transfer(struct router *router, struct transfer *transfer)
{
    while (transfer->state == TRANSFER_POSTED && !router_cancel(router, transfer)) router_poll(router);
}
tutti_status host_exchange_run(tutti_comm *comm, const struct host_exchange *exchange, int64_t deadline_ms)
{
    const struct message_name name = { OPERATION_OF_JOIN, exchange->number };
    struct piece sent_piece = { exchange->sent, exchange->bytes, exchange->bytes },
                 received_piece = { exchange->received, exchange->bytes, exchange->bytes };
    struct transfer sent = {
        .name = name, .peer = exchange->to, .is_send = true, .pieces = &sent_piece, .piece_count = 1
    };
    struct transfer received = { .name = name, .peer = exchange->from, .pieces = &received_piece, .piece_count = 1 };
    router_post(comm->router, &received);
    router_post(comm->router, &sent);
    tutti_status status = host_exchange_await_transfer(comm, &received, deadline_ms);
    if (status == TUTTI_OK) status = host_exchange_await_transfer(comm, &sent, deadline_ms);
    host_exchange_end_transfer(comm->router, &received);
    host_exchange_end_transfer(comm->router, &sent);
    return status;
}
