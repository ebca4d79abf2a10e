/* Sends and receives of shared tensors. The bytes that arrive do not depend on where the tensors lie, no mapping leaks,
   and after a failure the memory belongs to its owner again. */
#include "backend/engine/comm.h"
#include "tests/support/bytes.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

enum { MOST = 3 << 20, GUARD = 64, SECONDS = 300 };
static unsigned char *shared(size_t bytes)
{
    void *at;
    REQUIRE(tutti_mem_alloc(&at, bytes) == TUTTI_OK);
    return at;
}
static tutti_status start(struct rank *me, bool is_send, void *at, size_t bytes, int peer, tutti_request *request)
{
    return is_send ? tutti_send(at, bytes, TUTTI_UINT8, peer, 1, me->comm, request)
                   : tutti_recv(at, bytes, TUTTI_UINT8, peer, 1, me->comm, request);
}

/* ---- all placements ---- */
/* Sends to the next rank of a ring and receives from the previous one. Overwrites what was sent as soon as that is
   allowed. */
static void exchange(struct rank *me, unsigned char *out, unsigned char *in, size_t bytes, int seed)
{
    int next = (me->rank + 1) % me->size, before = (me->rank + me->size - 1) % me->size;
    tutti_request send = TUTTI_REQUEST_INIT;
    bytes_fill(out, bytes, (uint64_t)(seed + me->rank));
    memset(in - GUARD, 0xa5, bytes + 2 * GUARD);
    REQUIRE(start(me, true, out, bytes, next, &send) == TUTTI_OK);
    REQUIRE(start(me, false, in, bytes, before, NULL) == TUTTI_OK);
    REQUIRE(tutti_wait(&send, 0) == TUTTI_OK);
    memset(out, 0, bytes);
    REQUIRE(bytes_are(in, bytes, (uint64_t)(seed + before)));
    for (int i = 0; i < GUARD; i++) REQUIRE(in[-1 - i] == 0xa5 && in[bytes + (size_t)i] == 0xa5);
}
static void every_placement(struct rank *me)
{
    static const size_t sizes[] = { 1, 8192, 8193, 40001, 131072, 300007, MOST };
    size_t room = MOST + 2 * GUARD + 1;
    unsigned char *areas[2][2] = { { malloc(room), malloc(room) }, { shared(room), shared(room) } };
    for (int where = 0; where < 16; where++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            /* Odd and even ranks have different placements. */
            int mine = me->rank % 2 ? where >> 2 : where;
            size_t odd = k % 2;
            exchange(me, areas[mine & 1][0] + GUARD + odd, areas[mine >> 1 & 1][1] + GUARD, sizes[k], where + (int)k);
        }
    for (int i = 0; i < 2; i++) {
        free(areas[0][i]);
        REQUIRE(tutti_mem_free(areas[1][i]) == TUTTI_OK);
    }
}
static void test_bytes_are_right_for_every_placement_on_threads(void **state)
{
    (void)state;
    for (int size = 2; size <= 3; size++) world_threads(size, NULL, every_placement, NULL);
}

/* ---- a group that fails while tensors are copied ---- */
static bool is_filled(const unsigned char *at, size_t bytes, unsigned char with)
{
    return at[0] == with && memcmp(at, at + 1, bytes - 1) == 0;
}
/* Rank 0 aborts during a message. A rank that gets the error may reuse its tensors at once, and no peer changes them
   later. */
static void abort_in_the_middle(struct rank *me)
{
    unsigned char *out = shared(MOST), *in = shared(MOST);
    unsigned seed = 3;
    for (int round = 0; round < 15; round++) {
        tutti_comm *comm;
        pthread_t thread;
        REQUIRE(tutti_comm_split(me->comm, 0, me->rank, &comm) == TUTTI_OK);
        struct rank inner = { .comm = comm, .rank = me->rank, .size = me->size };
        struct aborter aborter = { comm, 100 + rand_r(&seed) % 4000 };
        memset(out, 1, MOST);
        exchange(&inner, out, in + GUARD, MOST - 2 * GUARD, round);
        /* After the barrier no rank is in the exchange any more. */
        REQUIRE(tutti_barrier(comm, NULL) == TUTTI_OK);
        if (me->rank == 0) REQUIRE(pthread_create(&thread, NULL, abort_main, &aborter) == 0);
        tutti_status status = TUTTI_OK;
        while (status == TUTTI_OK) {
            tutti_request send = TUTTI_REQUEST_INIT;
            int next = (me->rank + 1) % me->size, before = (me->rank + me->size - 1) % me->size;
            status = start(&inner, true, out, MOST, next, &send);
            if (status == TUTTI_OK) status = start(&inner, false, in, MOST, before, NULL);
            tutti_status other = tutti_wait(&send, 0);
            if (status == TUTTI_OK) status = other;
        }
        REQUIRE(status == TUTTI_ABORTED);
        memset(out, 7, MOST);
        memset(in, 7, MOST);
        sleep_us(3000);
        REQUIRE(is_filled(out, MOST, 7) && is_filled(in, MOST, 7));
        if (me->rank == 0) pthread_join(thread, NULL);
        REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
    }
    REQUIRE(tutti_mem_free(out) == TUTTI_OK && tutti_mem_free(in) == TUTTI_OK);
}
static void test_tensors_are_not_touched_after_an_abort_on_threads(void **state)
{
    (void)state;
    world_threads(2, NULL, abort_in_the_middle, NULL);
}

/* ---- communicators that the test drives itself ---- */
static void reach_step(_Atomic int *step, int wanted)
{
    for (int n = 0; atomic_load(step) < wanted; n++) {
        REQUIRE(n < SECONDS * 1000);
        sleep_us(1000);
    }
}
/* Takes the driver's role of the communicator when its message has been posted. */
static void drive_alone(tutti_comm *comm)
{
    for (int n = 0;; n++) {
        driver_acquire_role(comm);
        if (comm->messages.open) return;
        driver_hand_over_role(comm);
        REQUIRE(n < SECONDS * 1000);
        sleep_us(1000);
    }
}
static bool turn(tutti_comm *comm)
{
    struct wait_set blocked = { .count = 0 };
    return messages_make_progress(comm, &blocked);
}
/* A block of this size is not kept when it is free. */
enum { LARGE = 70 << 20 };
/* The receive of rank 0 into a shared tensor fails, because rank 1 has freed the tensor that it sends. Rank 0 has the
   driver's role, and rank 1 is marked as if it were copying. */
static void meet_freed_tensor(struct rank *me, unsigned char *in, tutti_request *request)
{
    /* One part, so that the sender does not help to copy. */
    enum { BYTES = 16384 };
    _Atomic int *step = me->context;
    atomic_uint *copying = &group_control_at_index(&me->comm->group, 1)->copying;
    if (me->rank == 0) {
        REQUIRE(start(me, false, in, BYTES, 1, request) == TUTTI_OK);
        drive_alone(me->comm);
        atomic_store(step, 1);
        reach_step(step, 2);
        for (int n = 0; me->comm->messages.open->message.transfer.state == TRANSFER_POSTED; n++) {
            REQUIRE(n < SECONDS * 1000);
            router_poll(me->comm->router);
        }
    } else {
        reach_step(step, 1);
        unsigned char *at = shared(LARGE);
        REQUIRE(start(me, true, at, BYTES, 0, request) == TUTTI_OK);
        drive_alone(me->comm);
        driver_hand_over_role(me->comm);
        REQUIRE(tutti_mem_free(at) == TUTTI_OK);
        atomic_store(copying, 1);
        atomic_store(step, 2);
        REQUIRE(tutti_wait(request, 0) == TUTTI_INVALID_ARGUMENT);
    }
}
static void failed_while_a_peer_copies(struct rank *me)
{
    tutti_request request = TUTTI_REQUEST_INIT;
    unsigned char *in = shared(MOST);
    meet_freed_tensor(me, in, &request);
    if (me->rank == 0) {
        REQUIRE(turn(me->comm));
        REQUIRE(atomic_load(&me->comm->outcome.failed));
        REQUIRE(tutti_test(&request) == TUTTI_IN_PROGRESS);
        REQUIRE(messages_cancel(me->comm));
        messages_fail(me->comm, me->comm->outcome.status);
        REQUIRE(tutti_test(&request) == TUTTI_IN_PROGRESS);
        /* Rank 1 may still report that it gives up. After that a turn finds no work while rank 0 waits. */
        for (int n = 0; turn(me->comm); n++) REQUIRE(n < 10);
        REQUIRE(!turn(me->comm));
        atomic_store(&group_control_at_index(&me->comm->group, 1)->copying, 0);
        messages_fail(me->comm, me->comm->outcome.status);
        REQUIRE(tutti_test(&request) == TUTTI_INVALID_ARGUMENT);
        driver_hand_over_role(me->comm);
    }
    REQUIRE(tutti_mem_free(in) == TUTTI_OK);
}
static void test_a_failed_message_waits_for_a_peer_that_copies(void **state)
{
    _Atomic int step = 0;
    (void)state;
    world_threads(2, NULL, failed_while_a_peer_copies, &step);
}
/* Another thread than the one that polled reports the failure. It has the text of the failure even so. */
static void reported_by_another_thread(struct rank *me)
{
    tutti_request request = TUTTI_REQUEST_INIT;
    unsigned char *in = shared(MOST);
    meet_freed_tensor(me, in, &request);
    if (me->rank == 0) {
        atomic_store(&group_control_at_index(&me->comm->group, 1)->copying, 0);
        status_fail(TUTTI_TIMEOUT, "something else");
        driver_hand_over_role(me->comm);
        REQUIRE(tutti_wait(&request, 0) == TUTTI_INVALID_ARGUMENT);
        REQUIRE(strstr(tutti_get_last_error(), "has freed a shared tensor") != NULL);
        REQUIRE(strstr(tutti_get_last_error(), "from rank 1 with tag 1") != NULL);
    }
    REQUIRE(tutti_mem_free(in) == TUTTI_OK);
}
static void test_another_thread_reports_why_a_message_failed(void **state)
{
    _Atomic int step = 0;
    (void)state;
    world_threads(2, NULL, reported_by_another_thread, &step);
}
/* After some idle polls a rank listens for its bell, however long its backoff is. From then on idle polls are not
   counted. */
static void listen_soon(struct rank *me)
{
    tutti_request request = TUTTI_REQUEST_INIT;
    unsigned char byte = 1;
    if (me->rank == 0) {
        struct control *mine = me->comm->executor.site.own_control;
        REQUIRE(start(me, false, &byte, 1, 1, &request) == TUTTI_OK);
        drive_alone(me->comm);
        struct backoff backoff = me->comm->group.backoff;
        me->comm->group.backoff.pauses = 1000000;
        me->comm->messages.idle_polls = 0;
        atomic_store(&mine->listening, 0);
        REQUIRE(!turn(me->comm) && !atomic_load(&mine->listening));
        for (int n = 0; n < 1000; n++) REQUIRE(!turn(me->comm));
        REQUIRE(atomic_load(&mine->listening));
        int counted = me->comm->messages.idle_polls;
        for (int n = 0; n < 1000; n++) REQUIRE(!turn(me->comm));
        REQUIRE(me->comm->messages.idle_polls == counted);
        me->comm->group.backoff = backoff;
        driver_hand_over_role(me->comm);
        atomic_store((_Atomic int *)me->context, 1);
        REQUIRE(tutti_wait(&request, 0) == TUTTI_OK);
    } else {
        reach_step(me->context, 1);
        REQUIRE(start(me, true, &byte, 1, 0, NULL) == TUTTI_OK);
    }
}
static void test_a_rank_with_idle_messages_listens_for_its_bell(void **state)
{
    _Atomic int step = 0;
    (void)state;
    world_threads(2, NULL, listen_soon, &step);
}

#ifndef NO_PROCESSES
static void test_bytes_are_right_for_every_placement_on_processes(void **state)
{
    (void)state;
    for (int size = 2; size <= 4; size++) assert_int_equal(world_processes(size, SECONDS, every_placement, NULL), 0);
}
static void test_tensors_are_not_touched_after_an_abort_on_processes(void **state)
{
    (void)state;
    assert_int_equal(world_processes(3, SECONDS, abort_in_the_middle, NULL), 0);
}

/* ---- a peer that is killed ---- */
static void *kill_main(void *after_us)
{
    sleep_us(*(int *)after_us);
    raise(SIGKILL);
    return NULL;
}
/* Rank 1 is killed while it copies from or to rank 0's tensor. Rank 0 gets an error, and its tensor belongs to it
   again. */
static void survive(int rank, tutti_unique_id id, int round, int after_us)
{
    struct rank me = { .rank = rank, .size = 2 };
    pthread_t thread;
    unsigned char *at = shared(MOST);
    tutti_status status = TUTTI_OK;
    alarm(SECONDS);
    REQUIRE(tutti_comm_init_rank(&me.comm, 2, id, rank) == TUTTI_OK);
    if (rank == 1) REQUIRE(pthread_create(&thread, NULL, kill_main, &after_us) == 0);
    while (status == TUTTI_OK) status = start(&me, (rank + round) % 2, at, MOST, 1 - rank, NULL);
    REQUIRE(status == TUTTI_PEER_LOST);
    REQUIRE(strstr(tutti_get_last_error(), "rank 1") != NULL);
    memset(at, 7, MOST);
    REQUIRE(tutti_comm_destroy(me.comm) == TUTTI_OK);
    REQUIRE(is_filled(at, MOST, 7));
    REQUIRE(tutti_mem_free(at) == TUTTI_OK);
    _exit(0);
}
static void test_a_killed_peer_leaves_a_tensor_to_its_owner(void **state)
{
    unsigned seed = 5;
    (void)state;
    for (int round = 0; round < 20; round++) {
        tutti_unique_id id;
        int after_us = rand_r(&seed) % 5000, good = 0, status;
        assert_int_equal(tutti_get_unique_id(&id), TUTTI_OK);
        for (int r = 0; r < 2; r++)
            if (fork() == 0) survive(r, id, round, after_us);
        for (int r = 0; r < 2; r++) {
            assert_true(wait(&status) > 0);
            good += WIFEXITED(status) && WEXITSTATUS(status) == 0;
        }
        assert_int_equal(good, 1);
    }
}

/* ---- freed too early ---- */
/* Rank 0 frees the tensor, and with it its block, while its send is open. Both ranks get an error. */
static void freed_too_early(struct rank *me)
{
    if (me->rank == 0) {
        unsigned char *at = shared(LARGE);
        tutti_request request = TUTTI_REQUEST_INIT;
        REQUIRE(start(me, true, at, LARGE, 1, &request) == TUTTI_OK);
        /* The send has been announced after this barrier. */
        REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
        REQUIRE(tutti_mem_free(at) == TUTTI_OK);
        REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
        REQUIRE(tutti_wait(&request, 0) == TUTTI_INVALID_ARGUMENT);
    } else {
        unsigned char *in = malloc(LARGE);
        for (int i = 0; i < 2; i++) REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
        REQUIRE(start(me, false, in, LARGE, 0, NULL) == TUTTI_INVALID_ARGUMENT);
        free(in);
    }
    REQUIRE(strstr(tutti_get_last_error(), "freed while") != NULL);
    REQUIRE(strstr(tutti_get_last_error(), "rank 1") != NULL);
}
static void test_freeing_a_tensor_while_it_is_sent_is_an_error(void **state)
{
    (void)state;
    assert_int_equal(world_processes(2, SECONDS, freed_too_early, NULL), 0);
}

/* ---- many ---- */
static size_t lines_of(const char *path)
{
    size_t lines = 0;
    FILE *file = fopen(path, "r");
    for (int c; (c = fgetc(file)) != EOF;) lines += c == '\n';
    fclose(file);
    return lines;
}
static void ten_thousand(struct rank *me)
{
    enum { BYTES = 20000 };
    size_t maps = 0;
    for (int n = 0; n < 10000; n++) {
        unsigned char *at = shared(BYTES);
        bool sends = (n + me->rank) % 2;
        if (sends) memset(at, n, BYTES);
        REQUIRE(start(me, sends, at, BYTES, 1 - me->rank, NULL) == TUTTI_OK);
        if (!sends) REQUIRE(is_filled(at, BYTES, (unsigned char)n));
        REQUIRE(tutti_mem_free(at) == TUTTI_OK);
        if (n == 1000) maps = lines_of("/proc/self/maps");
    }
    REQUIRE(lines_of("/proc/self/maps") <= maps + 8);
}
static void test_ten_thousand_messages_leave_no_mappings(void **state)
{
    (void)state;
    assert_int_equal(world_processes(2, SECONDS, ten_thousand, NULL), 0);
}
#endif

unit_function test_shared_messages;
int test_shared_messages(void)
{
    const struct CMUnitTest tests[] = {
#ifndef NO_PROCESSES
        cmocka_unit_test(test_bytes_are_right_for_every_placement_on_processes),
        cmocka_unit_test(test_tensors_are_not_touched_after_an_abort_on_processes),
        cmocka_unit_test(test_a_killed_peer_leaves_a_tensor_to_its_owner),
        cmocka_unit_test(test_freeing_a_tensor_while_it_is_sent_is_an_error),
        cmocka_unit_test(test_ten_thousand_messages_leave_no_mappings),
#endif
        cmocka_unit_test(test_bytes_are_right_for_every_placement_on_threads),
        cmocka_unit_test(test_tensors_are_not_touched_after_an_abort_on_threads),
        cmocka_unit_test(test_a_failed_message_waits_for_a_peer_that_copies),
        cmocka_unit_test(test_another_thread_reports_why_a_message_failed),
        cmocka_unit_test(test_a_rank_with_idle_messages_listens_for_its_bell),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
