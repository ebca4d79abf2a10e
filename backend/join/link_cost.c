/* Both hosts of a pair send and receive at the same time, as in the rounds of collectives. The shortest small exchange
   gives the time of a message. Large exchanges of two lengths give the time of a byte when both directions are full.
   They also give the extra time of an announced message: an offer, an answer and the bytes take about three messages.
   If the bytes of the first length are slow, the second length is left out, and three messages are assumed. If the
   kernel's link time shows that the hosts are far apart, only few exchanges are made, because each takes long. Both
   hosts make every decision from the values of both. */
#include "backend/join/link_cost.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/base/sorted.h"
#include "backend/join/host_exchange.h"
#include "backend/links/links.h"
#include <float.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* The numbers of exchanges with a host nearby and with one farther than FAR_NS. */
enum { ENOUGH = 12, FEW = 3, FAR_NS = 200000 };
/* A network is slow if the bytes of a message of MEDIUM_BYTES take SLOW_NS or more. An announced message takes about as
   long as ANNOUNCED messages. A difference counts as at least 1 / BELIEVED of the larger time. */
enum { MEDIUM_BYTES = 128 << 10, LARGE_BYTES = 512 << 10, SLOW_NS = 500000, ANNOUNCED = 3, BELIEVED = 10 };
enum { KNOWN = 64 };
/* A ring of the latest link costs that this process has measured, by the nonce of the other process. */
static struct {
    pthread_mutex_t lock;
    struct { unsigned char process[16]; struct link_costs link_costs; } pair[KNOWN];
    unsigned count;
} known = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void link_costs_before_fork(void) { pthread_mutex_lock(&known.lock); }
static void link_costs_after_fork(void) { pthread_mutex_unlock(&known.lock); }
static void link_costs_prepare_fork(void)
{
    pthread_atfork(link_costs_before_fork, link_costs_after_fork, link_costs_after_fork);
}
/* Returns true and the link costs that were measured with that process before, or false. */
static bool link_costs_recall(const unsigned char process[16], struct link_costs *out)
{
    bool found = false;
    pthread_mutex_lock(&known.lock);
    for (unsigned i = 0; i < KNOWN && i < known.count && !found; i++) {
        found = memcmp(known.pair[i].process, process, 16) == 0;
        if (found) *out = known.pair[i].link_costs;
    }
    pthread_mutex_unlock(&known.lock);
    return found;
}
static void link_costs_remember(const unsigned char process[16], const struct link_costs *link_costs)
{
    pthread_mutex_lock(&known.lock);
    unsigned at = known.count++ % KNOWN;
    memcpy(known.pair[at].process, process, 16);
    known.pair[at].link_costs = *link_costs;
    pthread_mutex_unlock(&known.lock);
}

/* A measurement with the first rank of the neighbouring host, `peer`. `exchanges` counts those so far. */
struct link_measurement {
    tutti_comm *comm;
    int peer;
    int64_t deadline_ms;
    uint64_t exchanges;
    unsigned char *sent, *got; /* [LARGE_BYTES] */
};
/* Exchanges messages of `bytes` bytes with the peer once, and sets *ns to the time it took. */
static tutti_status link_measure_exchange(struct link_measurement *m, size_t bytes, double *ns)
{
    int64_t began_ns = clock_ns();
    const struct host_exchange exchange = {
        .number = HOST_EXCHANGE_MEASURES + m->exchanges++,
        .to = m->peer,
        .from = m->peer,
        .sent = m->sent,
        .received = m->got,
        .bytes = bytes,
    };
    TRY(host_exchange_run(m->comm, &exchange, m->deadline_ms));
    *ns = (double)(clock_ns() - began_ns);
    return TUTTI_OK;
}
/* Exchanges a value with the peer, and sets *value to the larger of both. */
static tutti_status link_measure_agree_value(struct link_measurement *m, double *value)
{
    double theirs, unused;
    memcpy(m->sent, value, sizeof *value);
    TRY(link_measure_exchange(m, sizeof *value, &unused));
    memcpy(&theirs, m->got, sizeof theirs);
    if (theirs > *value) *value = theirs;
    return TUTTI_OK;
}
/* Sets *best to the shortest of `count` mean times of `together` exchanges in a row of `bytes` bytes, in ns: to the
   larger value of both hosts. The host that begins an exchange later waits less for it, but begins the next one
   earlier. Between hosts that are far apart this is much of the time, so two exchanges are measured together. */
static tutti_status link_measure_best(struct link_measurement *m, int count, int together, size_t bytes, double *best)
{
    *best = DBL_MAX;
    for (int i = 0; i < count; i++) {
        double sum = 0, ns;
        for (int k = 0; k < together; k++, sum += ns) TRY(link_measure_exchange(m, bytes, &ns));
        *best = double_smaller(*best, sum / together);
    }
    return link_measure_agree_value(m, best);
}
/* Returns whole - part, but at least a tenth of `whole`, because the measurements are not exact. */
static double time_subtract_bounded(double whole, double part) { return double_larger(whole - part, whole / BELIEVED); }
/* Measures the costs of the network that the router uses now (as the head of this file describes). */
static tutti_status link_measure_network(struct link_measurement *m, struct link_cost *out)
{
    double medium_ns, large_ns, one_way_ns = link_one_way_ns(m->comm->group.peers[m->peer]);
    TRY(link_measure_agree_value(m, &one_way_ns));
    bool is_far = one_way_ns > FAR_NS;
    int times = is_far ? FEW : ENOUGH, together = is_far ? 2 : 1;
    TRY(link_measure_best(m, 2 * times, 1, sizeof(double), &out->message_ns));
    if (is_far) out->message_ns = double_larger(out->message_ns, one_way_ns);
    TRY(link_measure_best(m, times, together, MEDIUM_BYTES, &medium_ns));
    out->announced_ns = double_smaller(ANNOUNCED * out->message_ns, medium_ns);
    out->byte_ns = time_subtract_bounded(medium_ns, out->announced_ns) / MEDIUM_BYTES;
    if (medium_ns - out->announced_ns >= SLOW_NS) return TUTTI_OK;
    TRY(link_measure_best(m, times, together, LARGE_BYTES, &large_ns));
    out->byte_ns = time_subtract_bounded(large_ns, medium_ns) / (LARGE_BYTES - MEDIUM_BYTES);
    out->announced_ns = double_larger(out->message_ns, medium_ns - out->byte_ns * MEDIUM_BYTES);
    return TUTTI_OK;
}
/* Measures the costs of each network, one after the other. */
static tutti_status link_measure_networks(struct link_measurement *m, struct link_costs *out)
{
    struct router *router = m->comm->router;
    tutti_status status = TUTTI_OK;
    for (int k = 0; k < host_exchange_count_networks(m->comm) && status == TUTTI_OK; k++) {
        router_use_network(router, k);
        status = link_measure_network(m, &out->by[k]);
        LOG(DEBUG, "%s: by %s a message to rank %d takes %.0f ns, one with rendezvous %.0f ns, and a byte %.3f ns",
            m->comm->group.name, router_network_name(router, k), m->peer, out->by[k].message_ns,
            out->by[k].announced_ns, out->by[k].byte_ns);
    }
    router_use_network(router, -1);
    return status;
}
/* Sets *out to the costs with the peer: measured now, unless both hosts have measured them before. */
static tutti_status link_measure_peer(struct link_measurement *m, struct link_costs *out)
{
    const unsigned char *process = m->comm->group.members[m->peer].identity.nonce;
    double unknown = !link_costs_recall(process, out);
    TRY(link_measure_agree_value(m, &unknown));
    if (unknown > 0) {
        TRY(link_measure_networks(m, out));
        link_costs_remember(process, out);
        return TUTTI_OK;
    }
    for (int k = 0; k < host_exchange_count_networks(m->comm); k++) {
        TRY(link_measure_agree_value(m, &out->by[k].message_ns));
        TRY(link_measure_agree_value(m, &out->by[k].announced_ns));
        TRY(link_measure_agree_value(m, &out->by[k].byte_ns));
    }
    return TUTTI_OK;
}
tutti_status link_costs_measure(tutti_comm *comm, int64_t deadline_ms, struct link_costs *out)
{
    const struct group *group = &comm->group;
    int other = group->host ^ 1;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, link_costs_prepare_fork);
    *out = (struct link_costs){ 0 };
    if (other >= group->layout->hosts) return TUTTI_OK;
    struct link_measurement m = {
        .comm = comm, .peer = layout_rank(group->layout, other, 0), .deadline_ms = deadline_ms
    };
    m.sent = memory_alloc_zeroed(2, LARGE_BYTES);
    if (!m.sent) return comm_fail(comm, TUTTI_NO_MEMORY, "rank %d has no memory to measure the network", group->rank);
    m.got = m.sent + LARGE_BYTES;
    tutti_status status = link_measure_peer(&m, out);
    free(m.sent);
    return status;
}
/* Returns the time of a message of LARGE_BYTES in ns. */
static double link_cost_large_ns(const struct link_cost *c) { return c->announced_ns + c->byte_ns * LARGE_BYTES; }
void link_costs_publish(const struct link_costs *link_costs, struct machine *parameters)
{
    const struct link_cost *shortest = NULL, *largest = NULL;
    for (int k = 0; k < NETWORKS_AT_MOST; k++) {
        const struct link_cost *c = &link_costs->by[k];
        if (c->message_ns > 0 && (!shortest || c->message_ns < shortest->message_ns)) shortest = c;
        if (c->byte_ns > 0 && (!largest || link_cost_large_ns(c) < link_cost_large_ns(largest))) largest = c;
    }
    if (shortest) parameters->message = shortest->message_ns;
    if (largest && largest->announced_ns > 0) parameters->announced = largest->announced_ns;
    if (largest) parameters->wire = largest->byte_ns;
}
