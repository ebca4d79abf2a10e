/* The wire is one thread that does the work of all devices of the process. It visits the queue pairs in turn, does a
   portion of work for each, and sleeps while no queue pair has work. It alone takes requests from their queues and puts
   completions into completion queues. */
#include "tests/verbs/machine.h"
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* In a round the wire does up to STEPS steps for each queue pair, and about PORTION_OF_ROUND bytes and steps in all. It
   sleeps after IDLE_ROUNDS rounds without work. */
enum { STEPS = 16, FLUSHED_AT_ONCE = 64, PORTION_OF_ROUND = 1 << 20, IDLE_ROUNDS = 20, SHORTEST_SLEEP_NS = 50000 };

static pthread_mutex_t users_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t thread;
static int users;
static atomic_bool stopping;
static atomic_uint bell, sleeping;
/* Only the wire uses these: the time of the round and of the next event that it waits for, in ns of wire_now(), and the
   index of the queue pair that it visited last. */
static uint64_t now, next_due;
static uint32_t cursor;

uint64_t wire_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
/* `sleeping` is read by an operation that also writes it, so that a call is not lost while the wire falls asleep. The
   call acquires nothing, so the thread sanitizer sees no order from the wire to the program. */
void wire_ring(void)
{
    atomic_fetch_add_explicit(&bell, 1, memory_order_release);
    if (atomic_fetch_or_explicit(&sleeping, 0, memory_order_release))
        syscall(SYS_futex, &bell, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
static void wire_sleep(unsigned heard)
{
    struct timespec wait, *until = NULL;
    if (next_due != UINT64_MAX) {
        uint64_t still = next_due > now ? next_due - now : 0;
        if (still < SHORTEST_SLEEP_NS) { sched_yield(); return; }
        wait = (struct timespec){ (time_t)(still / 1000000000u), (long)(still % 1000000000u) };
        until = &wait;
    }
    atomic_exchange(&sleeping, 1);
    syscall(SYS_futex, &bell, FUTEX_WAIT_PRIVATE, heard, until, NULL, 0);
    atomic_store(&sleeping, 0);
}
static void wire_await(uint64_t due)
{
    if (due < next_due) next_due = due;
}

/* ---- completions ---- */
struct work *queue_head(struct queue *q)
{
    if (q->taken == atomic_load_explicit(&q->posted, memory_order_acquire)) return NULL;
    return &q->slots[q->taken % q->capacity];
}
static void completion_deliver(struct pair *p, const struct completion *c)
{
    completion_queue_push((struct completion_queue *)(c->of_send ? p->ibv.send_cq : p->ibv.recv_cq), c);
}
static uint64_t staged_deliver(struct pair *p, struct queue *q)
{
    uint64_t before = q->staged_out;
    for (; q->staged_out < q->staged_in; q->staged_out++) {
        const struct completion *c = &q->staged[q->staged_out % q->capacity];
        if (c->due > now) { wire_await(c->due); break; }
        completion_deliver(p, c);
    }
    return q->staged_out - before;
}
/* Returns a completion with that failure. Fields that are undefined after a failure have meaningless values, so that a
   program which reads them is found out. */
static struct ibv_wc failure(enum ibv_wc_status status)
{
    struct ibv_wc wc;
    memset(&wc, 0x5e, sizeof wc);
    wc.status = status;
    wc.vendor_err = 0x80u + (uint32_t)status;
    return wc;
}
void work_complete(struct pair *p, struct queue *q, const struct ibv_wc *wc, bool silent, bool solicited)
{
    struct completion c = { .wc = wc->status == IBV_WC_SUCCESS ? *wc : failure(wc->status),
        .pair = p,
        .of_send = q == &p->send,
        .solicited = solicited };
    c.wc.wr_id = queue_head(q)->id;
    c.wc.qp_num = p->ibv.qp_num;
    c.reclaims = ++q->taken;
    if (silent) return;
    if (wc->status == IBV_WC_WR_FLUSH_ERR) machine_count(FAKE_FLUSHED, 1);
    const struct fake_faults *f = &machine.faults;
    if (machine_chance(f->late)) c.due = now + 1000 * machine_random(f->late_most_us + 1);
    if (q->staged_in == q->staged_out && c.due <= now) completion_deliver(p, &c);
    else q->staged[q->staged_in++ % q->capacity] = c;
}
static uint64_t queue_flush(struct pair *p, struct queue *q)
{
    uint64_t flushed = 0;
    for (; flushed < FLUSHED_AT_ONCE && queue_head(q); flushed++)
        work_complete(p, q, &(struct ibv_wc){ .status = IBV_WC_WR_FLUSH_ERR }, false, false);
    return flushed;
}

void send_complete(struct pair *p, enum ibv_wc_status status)
{
    static const enum ibv_wc_opcode opcodes[] = { IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_SEND, IBV_WC_SEND,
        IBV_WC_RDMA_READ };
    const struct work *w = queue_head(&p->send);
    if (status == IBV_WC_SUCCESS) status = p->forced;
    struct ibv_wc wc = { .status = status, .opcode = opcodes[w->opcode], .byte_len = (uint32_t)w->length };
    p->begun = false;
    if (status == IBV_WC_SUCCESS) trace_request(FAKE_CARRIED, p, w, false);
    work_complete(p, &p->send, &wc, status == IBV_WC_SUCCESS && !(w->flags & IBV_SEND_SIGNALED), false);
    if (status == IBV_WC_SUCCESS) return;
    if (p->ibv.qp_type == IBV_QPT_RC) pair_fail(p);
    else if (atomic_load(&p->state) == IBV_QPS_RTS) atomic_store(&p->state, IBV_QPS_SQE);
}
void receive_complete(struct pair *p, struct ibv_wc wc, bool solicited)
{
    work_complete(p, &p->receive, &wc, false, solicited);
    if (wc.status != IBV_WC_SUCCESS) pair_fail(p);
}

/* ---- failures that a test has ordered ---- */
bool receive_is_forced(enum ibv_wc_status *out)
{
    if (machine.next_receive.status == IBV_WC_SUCCESS || machine.next_receive.after--) return false;
    *out = machine.next_receive.status;
    machine.next_receive.status = IBV_WC_SUCCESS;
    return true;
}
static void request_begin(struct pair *p)
{
    const struct fake_faults *f = &machine.faults;
    p->begun = true;
    p->moved = p->retries = p->not_ready = 0;
    bool delayed = p->ibv.qp_type == IBV_QPT_RC && machine_chance(f->delay);
    p->not_before = delayed ? now + 1000 * machine_random(f->delay_most_us + 1) : 0;
    p->forced = IBV_WC_SUCCESS;
    if (machine.next_request.status == IBV_WC_SUCCESS || machine.next_request.after--) return;
    p->forced = machine.next_request.status;
    p->executed = machine.next_request.executed;
    machine.next_request.status = IBV_WC_SUCCESS;
}
/* Fails the request with the ordered status before it has an effect. If that status is an answer of the peer, the
   peer's queue pair fails, too, with an event. */
static void request_force(struct pair *p)
{
    bool by_peer = p->forced == IBV_WC_REM_ACCESS_ERR || p->forced == IBV_WC_REM_INV_REQ_ERR
        || p->forced == IBV_WC_REM_OP_ERR || p->forced == IBV_WC_REM_ABORT_ERR;
    struct pair *peer = by_peer && p->ibv.qp_type == IBV_QPT_RC ? pair_find(p->attr.dest_qp_num) : NULL;
    if (peer) {
        pair_fail(peer);
        pair_raise(peer, p->forced == IBV_WC_REM_ACCESS_ERR ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR);
    }
    send_complete(p, p->forced);
}

/* ---- the round ---- */
static uint64_t request_step(struct pair *p)
{
    struct work *w = queue_head(&p->send);
    if (!w) return 0;
    if (!p->begun) request_begin(p);
    if (p->not_before > now) { wire_await(p->not_before); return 0; }
    if (p->forced && !p->executed) { request_force(p); return 1; }
    return p->ibv.qp_type == IBV_QPT_RC ? reliable_step(p, w, now) : datagram_step(p, w, now);
}
static uint64_t pair_step(struct pair *p)
{
    uint64_t done = staged_deliver(p, &p->send) + staged_deliver(p, &p->receive);
    int state = atomic_load(&p->state);
    if (state == IBV_QPS_ERR) return done + queue_flush(p, &p->send) + queue_flush(p, &p->receive);
    if (state == IBV_QPS_SQE) return done + queue_flush(p, &p->send);
    return state == IBV_QPS_RTS ? done + request_step(p) : done;
}
static uint64_t wire_round(void)
{
    now = wire_now();
    next_due = UINT64_MAX;
    uint64_t done = datagrams_deliver(now, &next_due);
    for (uint32_t i = 0; i < machine.pairs_end && done < PORTION_OF_ROUND; i++) {
        cursor = cursor + 1 < machine.pairs_end ? cursor + 1 : 0;
        struct pair *p = machine.pairs[cursor];
        uint64_t stepped = 1;
        for (int step = 0; p && stepped && step < STEPS && done < PORTION_OF_ROUND; step++)
            done += stepped = pair_step(p);
    }
    return done;
}
static void *wire_run(void *unused)
{
    for (int idle = 0; !atomic_load(&stopping);) {
        unsigned heard = atomic_load_explicit(&bell, memory_order_acquire);
        for (int turn = 0; turn < 1000 && atomic_load(&machine.waiting); turn++) sched_yield();
        pthread_mutex_lock(&machine.lock);
        uint64_t done = wire_round();
        pthread_mutex_unlock(&machine.lock);
        if (done) idle = 0;
        else if (++idle < IDLE_ROUNDS) sched_yield();
        else wire_sleep(heard);
    }
    return unused;
}

/* Starts the thread with all signals blocked, because the program's own threads handle them. */
static int thread_start(void)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    atomic_store(&stopping, false);
    int error = pthread_create(&thread, NULL, wire_run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}
int wire_start(void)
{
    pthread_mutex_lock(&users_lock);
    int error = users ? 0 : thread_start();
    if (!error) users++;
    pthread_mutex_unlock(&users_lock);
    return error;
}
void wire_stop(void)
{
    pthread_mutex_lock(&users_lock);
    if (!--users) {
        atomic_store(&stopping, true);
        wire_ring();
        pthread_join(thread, NULL);
    }
    pthread_mutex_unlock(&users_lock);
}
