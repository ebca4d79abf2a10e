/* Processes of one host connect, with one connection for each pair, whichever process connects first. A process that
   cannot be reached is an error with the reason. Processes send each other descriptors. No descriptor is left open. */
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/random.h"
#include "backend/base/status.h"
#include "backend/host/socket.h"
#include "backend/processes/registry.h"
#include "tests/support/unit.h"
#include "tests/unit/processes/peers_world.h"
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

/* ---- finding each other ---- */
static void connect_at_once(void)
{
    struct peer *peers[MOST], *again;
    int before = count_descriptors();
    for (int round = 0; round < 20; round++) {
        world_join();
        world_connect_all(peers);
        world_barrier(size);
        /* There is one connection to each other process. */
        REQUIRE(descriptors_settle_at(before + REGISTRY_DESCRIPTORS + size - 1));
        world_barrier(size);
        for (int peer = 0; peer < size; peer++) {
            if (peer == rank) continue;
            REQUIRE(world_call(peer, &again) == TUTTI_OK && again == peers[peer]);
            REQUIRE(!peer_is_gone(again));
            peer_release(again);
        }
        world_release_all(peers);
        world_barrier(size);
        peers_release();
        REQUIRE(count_descriptors() == before);
        REQUIRE(threads_settle_at(1));
        world_barrier(size);
    }
}
static void test_2_processes_connect_at_once(void **state)
{
    (void)state;
    world_run(2, connect_at_once, 0);
}
static void test_4_processes_connect_at_once(void **state)
{
    (void)state;
    world_run(4, connect_at_once, 0);
}
/* Only process 0 connects. */
static void connect_from_one_side(void)
{
    struct peer *peer;
    world_join();
    if (rank == 0) {
        REQUIRE(world_call(1, &peer) == TUTTI_OK);
        peer_release(peer);
    }
    world_barrier(2);
    peers_release();
}
static void test_one_side_connects(void **state)
{
    (void)state;
    world_run(2, connect_from_one_side, 0);
}
static void *connect_main(void *context)
{
    REQUIRE(world_call(1 - rank, context) == TUTTI_OK);
    return NULL;
}
/* Several threads connect at once, as for several groups. */
static void connect_from_threads(void)
{
    struct peer *found[4];
    pthread_t threads[4];
    int before = count_descriptors();
    for (int round = 0; round < 10; round++) {
        world_join();
        for (int i = 0; i < 4; i++) REQUIRE(pthread_create(&threads[i], NULL, connect_main, &found[i]) == 0);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
        REQUIRE(found[0] == found[1] && found[1] == found[2] && found[2] == found[3]);
        world_barrier(size);
        REQUIRE(descriptors_settle_at(before + REGISTRY_DESCRIPTORS + 1));
        world_barrier(size);
        for (int i = 0; i < 4; i++) peer_release(found[i]);
        world_barrier(size);
        peers_release();
        world_barrier(size);
    }
}
static void test_threads_share_a_connection(void **state)
{
    (void)state;
    world_run(2, connect_from_threads, 0);
}

/* ---- processes that cannot be reached ---- */
static void connect_wrongly(void)
{
    struct identity mine, other = { .pid = 4711, .host = "elsewhere" };
    struct peer *peer = NULL;
    REQUIRE(world_acquire(&mine) == TUTTI_OK);
    REQUIRE(random_fill(other.nonce, sizeof other.nonce) == TUTTI_OK);
    REQUIRE(world_connect(&other, JOIN_MS, &peer) == TUTTI_SYSTEM && !peer);
    REQUIRE(strstr(status_detail(), "process 4711 on elsewhere") && strstr(status_detail(), "another host"));
    REQUIRE(world_connect(&mine, JOIN_MS, &peer) == TUTTI_INTERNAL && !peer);
    memory_fail_after(1);
    REQUIRE(world_connect(&other, JOIN_MS, &peer) == TUTTI_NO_MEMORY && !peer);
    peers_release();
}
static void test_missing_process_and_own_process_are_errors(void **state)
{
    (void)state;
    world_run(1, connect_wrongly, 0);
}
/* True if all threads of the process are stopped. */
static bool is_stopped(uint64_t pid)
{
    char path[64], line[64];
    int running = 0;
    snprintf(path, sizeof path, "/proc/%llu/task", (unsigned long long)pid);
    DIR *tasks = opendir(path);
    for (struct dirent *task; tasks && (task = readdir(tasks)) != NULL;) {
        char file[400];
        snprintf(file, sizeof file, "%s/%s/status", path, task->d_name);
        FILE *status = task->d_name[0] == '.' ? NULL : fopen(file, "r");
        while (status && fgets(line, sizeof line, status))
            running += strncmp(line, "State:", 6) == 0 && !strchr(line, 'T');
        if (status) fclose(status);
    }
    if (tasks) closedir(tasks);
    return tasks && !running;
}
static void connect_to_a_stopped_process(void)
{
    struct peer *peer;
    world_join();
    if (rank == 0) {
        kill((pid_t)world->identity[1].pid, SIGSTOP);
        for (int64_t until = clock_ms() + JOIN_MS; !is_stopped(world->identity[1].pid); sleep_ms(1))
            REQUIRE(clock_ms() < until);
        REQUIRE(world_connect(&world->identity[1], 200, &peer) == TUTTI_TIMEOUT);
        REQUIRE(strstr(status_detail(), "stopped or too busy"));
        kill((pid_t)world->identity[1].pid, SIGCONT);
        /* The process runs again. */
        REQUIRE(world_call(1, &peer) == TUTTI_OK);
        peer_release(peer);
    }
    world_barrier(2);
    peers_release();
}
static void test_stopped_process_is_not_taken_for_dead(void **state)
{
    (void)state;
    world_run(2, connect_to_a_stopped_process, 0);
}
static void connect_to_another_namespace(void)
{
    struct peer *peer;
    if (rank == 1 && unshare(CLONE_NEWNET) != 0) {
        world_acquire(&world->identity[1]);
        atomic_store(&world->skip, 1);
    }
    world_join();
    if (atomic_load(&world->skip)) _exit(SKIPPED);
    REQUIRE(world_call(1 - rank, &peer) == TUTTI_SYSTEM);
    REQUIRE(strstr(status_detail(), "network namespace"));
    peers_release();
}
static void test_other_network_namespace_is_another_host(void **state)
{
    (void)state;
    world_run(2, connect_to_another_namespace, 0);
}

/* ---- descriptors ---- */
static void make_token(unsigned char out[16], int from, int to, int number)
{
    memset(out, 0, 16);
    out[0] = (unsigned char)from;
    out[1] = (unsigned char)to;
    memcpy(out + 4, &number, sizeof number);
}
static void exchange_descriptors(void)
{
    struct peer *peers[MOST];
    unsigned char token[16], found[16];
    int before = count_descriptors();
    world_join();
    world_connect_all(peers);
    for (int number = 0; number < 5; number++)
        for (int peer = 0; peer < size; peer++) {
            if (peer == rank) continue;
            int memory = memfd_create("test", MFD_CLOEXEC);
            make_token(token, rank, peer, number);
            REQUIRE(write(memory, token, sizeof token) == sizeof token);
            REQUIRE(peer_send_descriptor(peers[peer], token, memory) == TUTTI_OK);
            close(memory);
        }
    /* The descriptors are taken in another order than they were sent. */
    for (int number = 4; number >= 0; number--)
        for (int peer = 0; peer < size; peer++) {
            int memory = -1;
            if (peer == rank) continue;
            make_token(token, peer, rank, number);
            REQUIRE(peers_await_descriptor(token, clock_ms() + JOIN_MS, &memory) == TUTTI_OK);
            REQUIRE(pread(memory, found, sizeof found, 0) == sizeof found && memcmp(found, token, sizeof found) == 0);
            close(memory);
        }
    int none = -5;
    make_token(token, 9, 9, 9);
    REQUIRE(peers_await_descriptor(token, clock_ms() + 20, &none) == TUTTI_TIMEOUT && none == -5);
    world_release_all(peers);
    world_barrier(size);
    peers_release();
    REQUIRE(count_descriptors() == before);
}
static void test_4_processes_exchange_descriptors(void **state)
{
    (void)state;
    world_run(4, exchange_descriptors, 0);
}
/* Rank 0 sends more descriptors than rank 1 keeps without a request. */
static void send_too_many(void)
{
    enum { SENT = MOST_EARLY_FDS + 100 };
    struct peer *peer;
    unsigned char token[16];
    int before = count_descriptors();
    world_join();
    REQUIRE(world_call(1 - rank, &peer) == TUTTI_OK);
    for (int number = 0; number < SENT && rank == 0; number++) {
        make_token(token, 0, 1, number);
        REQUIRE(peer_send_descriptor(peer, token, STDIN_FILENO) == TUTTI_OK);
    }
    make_token(token, 0, 1, SENT - 1);
    int last, none = -1;
    REQUIRE(rank == 0 || peers_await_descriptor(token, clock_ms() + JOIN_MS, &last) == TUTTI_OK);
    if (rank == 1) close(last);
    /* This descriptor was closed to make room, so a wait for it fails at once. */
    make_token(token, 0, 1, SENT - MOST_OPEN_EARLY_FDS - 1);
    REQUIRE(rank == 0 || peers_await_descriptor(token, INT64_MAX, &none) == TUTTI_SYSTEM);
    REQUIRE(rank == 0 || strstr(status_detail(), "more than 256 arrived after it that this process has not requested"));
    /* Rank 1 has taken one of the open ones. */
    REQUIRE(descriptors_settle_at(before + REGISTRY_DESCRIPTORS + 1 + (rank == 1 ? MOST_OPEN_EARLY_FDS - 1 : 0)));
    peer_release(peer);
    world_barrier(2);
    peers_release();
    REQUIRE(count_descriptors() == before);
}
static void test_descriptors_without_a_request_are_bounded(void **state)
{
    (void)state;
    world_run(2, send_too_many, 0);
}
/* If this process has no room for a received descriptor, the wait for that descriptor fails. The peer is not taken for
   dead, and later descriptors arrive. */
static void receive_without_room(void)
{
    struct peer *peer;
    struct rlimit before, none;
    unsigned char token[16];
    int memory = -1;
    world_join();
    REQUIRE(world_call(1 - rank, &peer) == TUTTI_OK);
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    none = (struct rlimit){ 3, before.rlim_max };
    if (rank == 1) REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
    world_barrier(2);
    for (int number = 0; number < 2; number++) {
        make_token(token, 0, 1, number);
        if (rank == 0) REQUIRE(peer_send_descriptor(peer, token, STDIN_FILENO) == TUTTI_OK);
        if (rank == 0) continue;
        REQUIRE(peers_await_descriptor(token, clock_ms() + JOIN_MS, &memory) == TUTTI_SYSTEM && memory == -1);
        REQUIRE(strstr(status_detail(), "or too many open files in this process (see ulimit -n), or"));
    }
    setrlimit(RLIMIT_NOFILE, &before);
    world_barrier(2);
    make_token(token, 0, 1, 2);
    if (rank == 0) REQUIRE(peer_send_descriptor(peer, token, STDIN_FILENO) == TUTTI_OK);
    if (rank == 1) REQUIRE(peers_await_descriptor(token, clock_ms() + JOIN_MS, &memory) == TUTTI_OK);
    if (rank == 1) close(memory);
    REQUIRE(!peer_is_gone(peer));
    world_barrier(2);
    peer_release(peer);
    peers_release();
}
static void test_descriptor_without_room_is_no_death(void **state)
{
    (void)state;
    world_run(2, receive_without_room, 0);
}
/* A rank refuses one descriptor that has arrived, and one that arrives later. */
static void refuse_descriptors(void)
{
    struct peer *peer;
    unsigned char tokens[3][16];
    int memory = -1;
    world_join();
    int expected = count_descriptors() + 1;
    world_barrier(2);
    REQUIRE(world_call(1 - rank, &peer) == TUTTI_OK);
    REQUIRE(descriptors_settle_at(expected));
    world_barrier(2);
    for (int i = 0; i < 3; i++) make_token(tokens[i], 0, 1, 20 + i);
    if (rank == 0) REQUIRE(peer_try_send_descriptor(peer, tokens[0], STDIN_FILENO) == 0);
    if (rank == 1) REQUIRE(descriptors_settle_at(expected + 1));
    for (int times = 0; times < 20 && rank == 1; times++)
        for (int i = 0; i < 2; i++) peers_refuse_descriptor(tokens[i]);
    world_barrier(2);
    for (int i = 1; i < 3 && rank == 0; i++) REQUIRE(peer_try_send_descriptor(peer, tokens[i], STDIN_FILENO) == 0);
    if (rank == 1) REQUIRE(peers_await_descriptor(tokens[2], clock_ms() + JOIN_MS, &memory) == TUTTI_OK);
    if (rank == 1) close(memory);
    for (int i = 0; i < 2 && rank == 1; i++) {
        REQUIRE(peers_await_descriptor(tokens[i], INT64_MAX, &memory) == TUTTI_SYSTEM);
        REQUIRE(strstr(status_detail(), "another rank of this process has ended the wait"));
    }
    REQUIRE(descriptors_settle_at(expected));
    world_barrier(2);
    peer_release(peer);
    peers_release();
}
static void test_refused_descriptors_are_closed_and_not_awaited(void **state)
{
    (void)state;
    world_run(2, refuse_descriptors, 0);
}
/* Each rank has aborted the join of a group before the two connect. They connect, and each learns of the other's
   abort. */
static void abort_and_connect(void)
{
    struct peer *peer;
    struct identity by;
    unsigned char mine[16], theirs[16];
    make_token(mine, rank, rank, 7);
    make_token(theirs, 1 - rank, 1 - rank, 7);
    world_join();
    peers_abort_join(mine);
    world_barrier(2);
    REQUIRE(world_call(1 - rank, &peer) == TUTTI_OK);
    for (int64_t until = clock_ms() + JOIN_MS; !peers_join_is_aborted(theirs, &by); usleep(1000))
        REQUIRE(clock_ms() < until);
    REQUIRE(by.pid != (uint64_t)getpid());
    REQUIRE(peers_join_is_aborted(mine, &by) && by.pid == (uint64_t)getpid());
    REQUIRE(!peer_is_gone(peer));
    world_barrier(2);
    peer_release(peer);
    peers_release();
}
static void test_aborted_joins_are_reported_to_later_peers(void **state)
{
    (void)state;
    /* Which process has the smaller nonce is random. */
    for (int times = 0; times < 8; times++) world_run(2, abort_and_connect, 0);
}
unit_function test_peers;
int test_peers(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_descriptor_without_room_is_no_death),
        cmocka_unit_test(test_refused_descriptors_are_closed_and_not_awaited),
        cmocka_unit_test(test_aborted_joins_are_reported_to_later_peers),
        cmocka_unit_test(test_2_processes_connect_at_once),
        cmocka_unit_test(test_4_processes_connect_at_once),
        cmocka_unit_test(test_one_side_connects),
        cmocka_unit_test(test_threads_share_a_connection),
        cmocka_unit_test(test_missing_process_and_own_process_are_errors),
        cmocka_unit_test(test_stopped_process_is_not_taken_for_dead),
        cmocka_unit_test(test_other_network_namespace_is_another_host),
        cmocka_unit_test(test_4_processes_exchange_descriptors),
        cmocka_unit_test(test_descriptors_without_a_request_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
