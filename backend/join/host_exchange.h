/* Exchanges of messages between the first ranks of hosts, while a linked group joins. */
#pragma once
#include "backend/engine/comm.h"

/* The numbers of the messages: of the barriers, one for each network, of the link costs, and of the measurements. */
enum {
    HOST_EXCHANGE_JOINED,
    HOST_EXCHANGE_OF_EACH = 64,
    HOST_EXCHANGE_COSTS = HOST_EXCHANGE_OF_EACH * NETWORKS_AT_MOST,
    HOST_EXCHANGE_MEASURES = 1024
};
/* An exchange: sends `bytes` bytes to rank `to`, and receives as many from rank `from`, in messages of that number. */
struct host_exchange {
    uint64_t number;
    int to, from;
    void *sent, *received;
    size_t bytes;
};
/* Runs an exchange until both messages are complete. An error fails the group. TIMEOUT names two ranks and what to
   check. */
tutti_status host_exchange_run(tutti_comm *comm, const struct host_exchange *exchange, int64_t deadline_ms);
/* Returns the number of networks that lead to other hosts, which is at least 1. */
int host_exchange_count_networks(const tutti_comm *comm);
