/* Operations between simulated hosts: every event wakes the ranks that wait for it, and a peer that stops reading, dies
   or leaves does not hold up the others. */
#include "backend/base/settings.h"
#include "backend/engine/comm.h"
#include "tests/support/inproc.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <limits.h>
#include <semaphore.h>

enum { SECONDS = 600, LARGE = 300000, ROUNDS = 3 };
static struct inproc_options options;
static tutti_status join_inproc(struct router *router) { return inproc_world_join(&options, router); }
static void go_over(const struct inproc_options *wanted)
{
    options = *wanted;
    messages_override_network(join_inproc);
    alarm(SECONDS);
}

/* ---- waking ---- */
static void post_semaphore(tutti_request *request, void *semaphore)
{
    (void)request;
    sem_post(semaphore);
}
/* how: 0 a blocking call, 1 a call that is waited for, 2 a call that the progress thread completes. */
static void sum_in_turns(struct rank *me, size_t count, int how)
{
    int32_t *data = calloc(count, sizeof *data);
    sem_t over;
    tutti_request r = TUTTI_REQUEST_INIT;
    sem_init(&over, 0, 0);
    r.blocking = how == 0;
    if (how == 2) { r.done = post_semaphore; r.context = &over; }
    for (size_t i = 0; i < count; i++) data[i] = me->rank + 1;
    REQUIRE(tutti_all_reduce(data, data, count, TUTTI_INT32, TUTTI_SUM, me->comm, &r) == TUTTI_OK);
    if (how == 2)
        while (sem_wait(&over) != 0) continue;
    else REQUIRE(tutti_wait(&r, 0) == TUTTI_OK);
    for (size_t i = 0; i < count; i++) REQUIRE(data[i] == me->size * (me->size + 1) / 2);
    sem_destroy(&over);
    free(data);
}
static void pass_round(struct rank *me, size_t bytes, bool any)
{
    unsigned char *out = calloc(1, bytes), *in = calloc(1, bytes);
    int next = (me->rank + 1) % me->size, before = (me->rank + me->size - 1) % me->size;
    tutti_request sent = TUTTI_REQUEST_INIT, got = TUTTI_REQUEST_INIT;
    memset(out, me->rank + 1, bytes);
    if (any) REQUIRE(tutti_send(out, bytes, TUTTI_UINT8, next, 3, me->comm, &sent) == TUTTI_OK);
    int from = any ? TUTTI_ANY_SOURCE : before;
    REQUIRE(tutti_recv(in, bytes, TUTTI_UINT8, from, 3, me->comm, &got) == TUTTI_OK);
    if (!any) REQUIRE(tutti_send(out, bytes, TUTTI_UINT8, next, 3, me->comm, &sent) == TUTTI_OK);
    REQUIRE(tutti_wait(&got, 0) == TUTTI_OK && tutti_wait(&sent, 0) == TUTTI_OK);
    REQUIRE(in[0] == before + 1 && in[bytes - 1] == before + 1);
    free(out);
    free(in);
}
static void all_kinds_of_waiting(struct rank *me)
{
    for (int round = 0; round < ROUNDS; round++) {
        for (int how = 0; how < 3; how++) {
            sum_in_turns(me, 1, how);
            sum_in_turns(me, LARGE, how);
        }
        REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
        for (int any = 0; any < 2; any++) {
            pass_round(me, 1, any);
            pass_round(me, LARGE, any);
        }
    }
}
/* The settings of three runs: ranks sleep at once; they do so with many small tiles; the defaults. */
static const struct {
    const char *pauses, *yields, *tile_bytes, *slots;
} ways[] = { { "0", "0", "0", "0" }, { "0", "0", "32768", "8" }, { "-1", "-1", "0", "0" } };
static void over_hosts_without_checks(void)
{
    atomic_store(&most_sleep_ms, INT_MAX);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        /* A rank that relies on the periodic check, which never comes, hangs. */
        alarm(SECONDS);
        setenv("TUTTI_SPINS", ways[i].pauses, 1);
        setenv("TUTTI_YIELDS", ways[i].yields, 1);
        setenv("TUTTI_TILE_BYTES", ways[i].tile_bytes, 1);
        setenv("TUTTI_SLOTS", ways[i].slots, 1);
        world_threads_on("2", 2, NULL, all_kinds_of_waiting, NULL);
        world_threads_on("0,1,0", 3, NULL, all_kinds_of_waiting, NULL);
        world_threads_on("2", 4, NULL, all_kinds_of_waiting, NULL);
    }
    atomic_store(&most_sleep_ms, 20);
}
static void test_no_wait_over_inproc_needs_the_periodic_check(void **state)
{
    (void)state;
    go_over(&(struct inproc_options){ .seed = 1, .delay = 400, .in_time = true, .budget = 4 });
    over_hosts_without_checks();
}
static void test_no_wait_over_shared_memory_needs_the_periodic_check(void **state)
{
    (void)state;
    messages_override_network(NULL);
    over_hosts_without_checks();
}

/* ---- bytes that are on their way ---- */
/* The polls that rank 0 makes before rank 1 sends, fewer than those of the turns in which a receiving rank only
   pauses. */
enum { POLLS_WITHOUT_YIELD = 100 };
static struct {
    const struct transport_operations *operations;
    int polls;
    /* The yields before the first poll, then those until the last one. */
    uint64_t yields;
    _Atomic bool is_over;
} watched;
static bool poll_and_count(struct transport *network)
{
    if (++watched.polls == POLLS_WITHOUT_YIELD) {
        watched.yields = waiting_counter_value(WAITING_YIELDS) - watched.yields;
        atomic_store(&watched.is_over, true);
    }
    return watched.operations->poll(network);
}
/* Rank 0 waits for a message with a backoff that yields after every turn, while its network receives. */
static void receive_without_yields(struct rank *me)
{
    int32_t word = 7;
    if (me->rank == 1) {
        while (!atomic_load(&watched.is_over)) sleep_us(1000);
        REQUIRE(tutti_send(&word, 1, TUTTI_INT32, 0, 3, me->comm, NULL) == TUTTI_OK);
        return;
    }
    struct transport *network = me->comm->router->transports;
    watched.operations = network->operations;
    struct transport_operations counted = *network->operations;
    counted.poll = poll_and_count;
    me->comm->group.backoff = (struct backoff){ .pauses = 0, .yields = INT_MAX / 2 };
    watched.yields = waiting_counter_value(WAITING_YIELDS);
    network->operations = &counted;
    network->is_receiving = true;
    REQUIRE(tutti_recv(&word, 1, TUTTI_INT32, 1, 3, me->comm, NULL) == TUTTI_OK);
    network->is_receiving = false;
    network->operations = watched.operations;
    REQUIRE(watched.yields == 0);
}
static void test_a_rank_that_receives_a_message_does_not_yield(void **state)
{
    (void)state;
    go_over(&(struct inproc_options){ .seed = 1, .in_time = true });
    world_threads_on("2", 2, NULL, receive_without_yields, NULL);
}

/* ---- a peer that stops reading ---- */
/* Rank 1 has begun to read what rank 0 sends, and from then on no thread polls for rank 1. */
enum { MET = 1, ENDED };
struct held { _Atomic int step; bool collective, lost; };
static void await_step(struct held *held, int step)
{
    while (atomic_load(&held->step) < step) sleep_us(1000);
}
static void start_one(struct rank *me, bool collective, tutti_request *r)
{
    static int32_t data[2][LARGE];
    tutti_status status;
    *r = (tutti_request)TUTTI_REQUEST_INIT;
    if (collective) r->algorithm = "ring";
    int32_t *mine = data[me->rank];
    if (collective) status = tutti_all_reduce(mine, mine, LARGE, TUTTI_INT32, TUTTI_SUM, me->comm, r);
    else if (me->rank == 0) status = tutti_send(mine, LARGE, TUTTI_INT32, 1, 3, me->comm, r);
    else status = tutti_recv(mine, LARGE, TUTTI_INT32, 0, 3, me->comm, r);
    REQUIRE(status == TUTTI_OK);
}
static bool has_met(const struct transfer *t) { return t->state == TRANSFER_POSTED && !t->is_send && t->source >= 0; }
static bool reads(const tutti_comm *comm)
{
    const struct program *p = comm->run_queue.head_has_begun ? comm->executor.launch.program : NULL;
    for (int i = 0; p && i < p->plan->slots * p->schedule->step_count; i++)
        if (has_met(&p->transfers[i])) return true;
    return comm->messages.open && has_met(&comm->messages.open->message.transfer);
}
static void stand_still(struct rank *me, struct held *held)
{
    struct wait_set unused = { .count = 0 };
    driver_acquire_role(me->comm);
    for (; !reads(me->comm); unused.count = 0) driver_make_progress(me->comm, &unused);
    atomic_store(&held->step, MET);
    await_step(held, ENDED);
    driver_hand_over_role(me->comm);
}
static void give_up(struct rank *me)
{
    struct held *held = me->context;
    tutti_request r;
    tutti_status expected = held->lost ? TUTTI_PEER_LOST : TUTTI_TIMEOUT;
    start_one(me, held->collective, &r);
    if (me->rank == 1) {
        stand_still(me, held);
        /* A link breaks for both ends. */
        if (held->lost) failure_record_lost_rank(me->comm, 0);
        REQUIRE(tutti_wait(&r, 0) == expected);
        return;
    }
    await_step(held, MET);
    if (held->lost) failure_record_lost_rank(me->comm, 1);
    REQUIRE(tutti_wait(&r, held->lost ? 0 : 1) == expected);
    REQUIRE(strstr(me->comm->router->reason, held->lost ? "died" : "rank 1 has not released a message") != NULL);
    atomic_store(&held->step, ENDED);
}
static void both_are_held(bool lost)
{
    for (int collective = 0; collective < 2; collective++)
        world_threads_on("2", 2, NULL, give_up, &(struct held){ .collective = collective, .lost = lost });
}
static void test_a_timeout_ends_although_the_peer_still_reads(void **state)
{
    (void)state;
    go_over(&(struct inproc_options){ .delay = 10, .in_time = true, .halted = 1 + 1, .cancel_ms = 30 });
    both_are_held(false);
}
/* A lost rank is not asked to release a message. With this cancel_ms that would last until the test is killed. */
static void test_a_lost_peer_need_not_release_a_message(void **state)
{
    (void)state;
    go_over(&(struct inproc_options){ .delay = 10, .in_time = true, .halted = 1 + 1, .cancel_ms = INT_MAX });
    both_are_held(true);
}

/* ---- a sender that has left ---- */
static void send_and_leave(struct rank *me)
{
    int32_t word = 7, got = 0;
    tutti_comm *pair;
    REQUIRE(tutti_comm_split(me->comm, 0, me->rank, &pair) == TUTTI_OK);
    if (me->rank == 0) REQUIRE(tutti_send(&word, 1, TUTTI_INT32, 1, 3, pair, NULL) == TUTTI_OK);
    else REQUIRE(tutti_recv(&got, 1, TUTTI_INT32, 0, 3, pair, NULL) == TUTTI_OK && got == 7);
    REQUIRE(tutti_comm_destroy(pair) == TUTTI_OK);
}
static void test_a_message_under_way_arrives_although_its_sender_has_left(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 10; seed++) {
        go_over(&(struct inproc_options){ .seed = seed, .delay = 100000, .in_time = true, .budget = 4 });
        world_threads_on("2", 2, NULL, send_and_leave, NULL);
    }
}

unit_function test_network;
int test_network(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_wait_over_inproc_needs_the_periodic_check),
        cmocka_unit_test(test_no_wait_over_shared_memory_needs_the_periodic_check),
        cmocka_unit_test(test_a_rank_that_receives_a_message_does_not_yield),
        cmocka_unit_test(test_a_timeout_ends_although_the_peer_still_reads),
        cmocka_unit_test(test_a_lost_peer_need_not_release_a_message),
        cmocka_unit_test(test_a_message_under_way_arrives_although_its_sender_has_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
