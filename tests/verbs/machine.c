/* The state of the fake as a whole: its lock, random faults and counters, and the failures that tests order. */
#include "tests/verbs/machine.h"
#include "tests/support/random.h"
#include <sched.h>
#include <stdio.h>

struct machine machine = { .lock = PTHREAD_MUTEX_INITIALIZER };
static atomic_ullong counters[FAKE_COUNTERS];
static struct {
    atomic_int ordered;
    unsigned after;
    int error;
} calls[FAKE_CALLS];
static pthread_mutex_t calls_lock = PTHREAD_MUTEX_INITIALIZER;

/* Counts the waiting threads, for which the wire pauses: otherwise it would take the lock again at once. */
void machine_lock(void)
{
    atomic_fetch_add(&machine.waiting, 1);
    pthread_mutex_lock(&machine.lock);
    atomic_fetch_sub(&machine.waiting, 1);
}
void machine_unlock(void) { pthread_mutex_unlock(&machine.lock); }

void machine_count(enum fake_counter counter, uint64_t by)
{
    atomic_fetch_add_explicit(&counters[counter], by, memory_order_relaxed);
}
uint64_t fake_count(enum fake_counter counter)
{
    return atomic_load_explicit(&counters[counter], memory_order_relaxed);
}

uint64_t machine_random(uint64_t below)
{
    uint64_t drawn = random_next(&machine.random);
    return below ? drawn % below : 0;
}
bool machine_chance(uint32_t millionths) { return millionths && machine_random(1000000) < millionths; }

int call_fails(enum fake_call call)
{
    if (!atomic_load_explicit(&calls[call].ordered, memory_order_relaxed)) return 0;
    int error = 0;
    pthread_mutex_lock(&calls_lock);
    if (atomic_load(&calls[call].ordered) && !calls[call].after--) {
        error = calls[call].error;
        atomic_store(&calls[call].ordered, 0);
    }
    pthread_mutex_unlock(&calls_lock);
    return error;
}
void fake_fail_call(enum fake_call call, unsigned after, int error)
{
    pthread_mutex_lock(&calls_lock);
    calls[call].after = after;
    calls[call].error = error;
    atomic_store(&calls[call].ordered, 1);
    pthread_mutex_unlock(&calls_lock);
}

void fake_fail_request(uint64_t after, enum ibv_wc_status status, bool executed)
{
    machine_lock();
    machine.next_request.after = after;
    machine.next_request.status = status;
    machine.next_request.executed = executed;
    machine_unlock();
}
void fake_fail_receive(uint64_t after, enum ibv_wc_status status)
{
    machine_lock();
    machine.next_receive.after = after;
    machine.next_receive.status = status;
    machine_unlock();
}

void fake_set_faults(const struct fake_faults *faults)
{
    machine_lock();
    machine.faults = *faults;
    machine.random = faults->seed;
    machine_unlock();
}
struct fake_limits fake_limits(void)
{
    machine_lock();
    struct fake_limits limits = machine.limits;
    machine_unlock();
    return limits;
}
void fake_set_limits(const struct fake_limits *limits)
{
    machine_lock();
    machine.limits = *limits;
    machine_unlock();
}

static void orders_forget(void)
{
    pthread_mutex_lock(&calls_lock);
    for (int call = 0; call < FAKE_CALLS; call++) atomic_store(&calls[call].ordered, 0);
    pthread_mutex_unlock(&calls_lock);
    machine.next_request.status = machine.next_receive.status = IBV_WC_SUCCESS;
}
__attribute__((constructor)) void fake_reset(void)
{
    machine_lock();
    orders_forget();
    datagrams_forget();
    machine.faults = (struct fake_faults){ 0 };
    machine.random = 0;
    machine.limits = (struct fake_limits){
        .devices = FAKE_DEVICES,
        .max_qp = PAIRS_MOST,
        .max_qp_wr = 16384,
        .max_sge = 16,
        .max_cqe = 1 << 22,
        .max_mr = REGIONS_MOST,
        .max_rd_atomic = 16,
        .max_inline = 256,
        .max_message = 1u << 30,
        .mtu = IBV_MTU_1024,
        .pinned_most = UINT64_MAX,
    };
    devices_reset();
    for (int counter = 0; counter < FAKE_COUNTERS; counter++) atomic_store(&counters[counter], 0);
    machine_unlock();
}

uint64_t fake_pinned_bytes(void)
{
    machine_lock();
    uint64_t bytes = machine.pinned;
    machine_unlock();
    return bytes;
}
uint64_t fake_alive(enum fake_kind kind) { return atomic_load(&machine.alive[kind]); }
uint64_t fake_left(void)
{
    static const char *const names[FAKE_KINDS] = { "device lists", "contexts", "protection domains", "memory regions",
        "completion channels", "completion queues", "shared receive queues", "queue pairs", "address handles" };
    uint64_t left = 0;
    for (int kind = 0; kind < FAKE_KINDS; kind++) {
        uint64_t alive = fake_alive(kind);
        if (alive) fprintf(stderr, "fake verbs: %s left alive: %llu\n", names[kind], (unsigned long long)alive);
        left += alive;
    }
    return left;
}
