/* The election of one process per host. All processes and threads of a group on one host learn of the same owner, the
   first process that took the name, even if processes of other groups, users or network namespaces exist. */
#include "backend/base/clock.h"
#include "backend/base/status.h"
#include "backend/host/socket.h"
#include "backend/processes/host_election.h"
#include "backend/processes/registry.h"
#include "tests/support/unit.h"
#include "tests/unit/processes/peers_world.h"
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

/* The token of this test's group, which no process outside of the test has. */
static unsigned char token[16];
static void begin_test(unsigned char which)
{
    pid_t me = getpid();
    memset(token, which, sizeof token);
    memcpy(token, &me, sizeof me);
}
static bool is_of_process(const unsigned char owner[16], const struct identity *process)
{
    unsigned char derived[KEY_BYTES];
    REQUIRE(group_key_derive(&world_key, "tutti owner", process->nonce, sizeof process->nonce, derived));
    return nonce_equal(owner, derived);
}
static bool is_of(const unsigned char owner[16], int process)
{
    return is_of_process(owner, &world->identity[process]);
}
/* Sets `out` to the name of the election's socket, which uses the first 16 bytes. */
static void name_host(unsigned char out[KEY_BYTES])
{
    REQUIRE(group_key_derive(&world_key, "tutti host", token, sizeof token, out));
}
static void election_join(unsigned char out[16])
{
    REQUIRE(host_election_join(token, &world_key, clock_ms() + JOIN_MS, out) == TUTTI_OK);
}
static void election_leave_and_check(int descriptors)
{
    host_election_leave(token);
    REQUIRE(descriptors_settle_at(descriptors));
    peers_release();
}

/* ---- processes ---- */
/* Process 1 joins first. Process 2 has another token, so it is of another group. */
static void join_in_turn(void)
{
    unsigned char owner[16];
    world_join();
    int before = count_descriptors();
    if (rank == 2) token[8] ^= 1;
    if (rank == 1) election_join(owner);
    world_barrier(size);
    if (rank != 1) election_join(owner);
    REQUIRE(is_of(owner, rank == 2 ? 2 : 1));
    world_barrier(size);
    election_leave_and_check(before);
}
static void test_all_processes_learn_of_the_first_one(void **state)
{
    (void)state;
    begin_test(1);
    world_run(4, join_in_turn, 0);
}
static void join_at_once(void)
{
    unsigned char owner[16];
    world_join();
    election_join(owner);
    int first = 0;
    while (first < size && !is_of(owner, first)) first++;
    REQUIRE(first < size);
    /* All processes must have found the same owner. */
    atomic_fetch_add(&world->skip, first);
    world_barrier(size);
    REQUIRE(atomic_load(&world->skip) == first * size);
    host_election_leave(token);
    peers_release();
}
static void test_processes_that_join_at_once_find_one_owner(void **state)
{
    (void)state;
    begin_test(2);
    for (int i = 0; i < 10; i++) world_run(MOST, join_at_once, 0);
}
static void join_after_a_death(void)
{
    unsigned char owner[16];
    world_join();
    if (rank == 0) election_join(owner);
    world_barrier(size);
    if (rank == 0) raise(SIGKILL);
    int64_t until = clock_ms() + GENEROUS_MS;
    for (int socket; (socket = socket_connect("peer", world->identity[0].nonce)) >= 0; sleep_ms(1)) {
        close(socket);
        REQUIRE(clock_ms() < until);
    }
    if (rank == 1) election_join(owner);
    world_barrier(size - 1);
    if (rank == 2) election_join(owner);
    REQUIRE(is_of(owner, 1));
    world_barrier(size - 1);
    host_election_leave(token);
    peers_release();
}
static void test_another_owner_is_elected_after_a_death(void **state)
{
    (void)state;
    begin_test(3);
    world_run(3, join_after_a_death, 1);
}

/* ---- threads ---- */
static void *join_main(void *owner)
{
    election_join(owner);
    return NULL;
}
static void join_by_threads(void)
{
    enum { THREADS = 8 };
    unsigned char owners[THREADS][16];
    pthread_t threads[THREADS];
    world_join();
    int before = count_descriptors();
    for (int i = 0; i < THREADS; i++) REQUIRE(pthread_create(&threads[i], NULL, join_main, owners[i]) == 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) REQUIRE(nonce_equal(owners[i], owners[0]));
    world_barrier(size);
    for (int i = 1; i < THREADS; i++) host_election_leave(token);
    unsigned char again[16];
    /* One thread is still in the election, so the owner is the same. */
    election_join(again);
    REQUIRE(nonce_equal(again, owners[0]));
    host_election_leave(token);
    election_leave_and_check(before);
}
static void test_threads_of_a_process_share_its_election(void **state)
{
    (void)state;
    begin_test(4);
    world_run(2, join_by_threads, 0);
}

/* ---- strangers ---- */
static void answer_nonsense(int listener)
{
    int answers = 0;
    for (int64_t until = clock_ms() + GENEROUS_MS; clock_ms() < until && atomic_load(&world->arrived[1]) < size - 1;) {
        int socket = socket_accept(listener);
        struct {
            char magic[8];
            uint32_t version, unused;
            unsigned char owner[16], proof[32];
        } forged = { "tutti-c", PROTOCOL, 0, { 1 }, { 0 } };
        bool forges = ++answers % 2;
        if (socket >= 0)
            socket_send(socket, forges ? (void *)&forged : "HTTP/1.1 400", forges ? sizeof forged : 12, -1);
        if (socket >= 0) close(socket);
        else sleep_ms(1);
    }
}
/* The last process is no rank, but listens at the name of the election. */
static void join_beside_a_stranger(void)
{
    unsigned char owner[16], name[KEY_BYTES];
    if (rank == size - 1) {
        /* Any process may read the name in /proc. */
        REQUIRE(group_key_add(world->key, &world_key) == TUTTI_OK);
        name_host(name);
        int listener = socket_listen("host", name);
        REQUIRE(listener >= 0);
        world_barrier(size);
        answer_nonsense(listener);
        return;
    }
    REQUIRE(world_acquire(&world->identity[rank]) == TUTTI_OK);
    world_barrier(size);
    election_join(owner);
    REQUIRE(is_of(owner, 0) || is_of(owner, 1));
    atomic_fetch_add(&world->skip, is_of(owner, 1));
    world_barrier(size - 1);
    REQUIRE(atomic_load(&world->skip) == (is_of(owner, 1) ? 2 : 0));
    world_barrier(size - 1);
    host_election_leave(token);
    peers_release();
}
static void test_election_ignores_a_stranger_with_its_name(void **state)
{
    (void)state;
    begin_test(5);
    world_run(3, join_beside_a_stranger, 0);
}
/* Processes 0 and 1 belong to this user, 2 and 3 to another. */
static void join_as_two_users(void)
{
    unsigned char owner[16];
    if (geteuid() != 0) _exit(SKIPPED);
    if (rank >= 2) REQUIRE(setresuid(65534, 65534, 65534) == 0);
    world_join();
    election_join(owner);
    REQUIRE(is_of(owner, rank / 2 * 2) || is_of(owner, rank / 2 * 2 + 1));
    world_barrier(size);
    host_election_leave(token);
    peers_release();
}
static void test_another_user_is_another_host(void **state)
{
    (void)state;
    begin_test(6);
    world_run(4, join_as_two_users, 0);
}
/* Process 2 has another network namespace, as a container has. */
static void join_in_two_namespaces(void)
{
    unsigned char owner[16];
    if (rank == 2) REQUIRE(unshare(CLONE_NEWNET) == 0);
    world_join();
    election_join(owner);
    REQUIRE(rank == 2 ? is_of(owner, 2) : is_of(owner, 0) || is_of(owner, 1));
    world_barrier(size);
    host_election_leave(token);
    peers_release();
}
static void test_another_network_namespace_is_another_host(void **state)
{
    (void)state;
    begin_test(8);
    pid_t child = fork();
    int refused;
    if (child == 0) _exit(unshare(CLONE_NEWNET) != 0);
    assert_int_equal(waitpid(child, &refused, 0), child);
    if (refused) { print_message("skipped: this user may not make a network namespace\n"); skip(); }
    world_run(3, join_in_two_namespaces, 0);
}
/* The test itself listens at the name and does not answer, as a stopped owner. */
static void join_while_the_owner_is_stopped(void)
{
    struct identity mine;
    unsigned char owner[16], name[KEY_BYTES];
    REQUIRE(world_acquire(&mine) == TUTTI_OK);
    name_host(name);
    int listener = socket_listen("host", name);
    REQUIRE(listener >= 0);
    REQUIRE(host_election_join(token, &world_key, clock_ms() + 100, owner) == TUTTI_TIMEOUT);
    REQUIRE(strstr(status_detail(), "it is stopped or too busy") != NULL);
    close(listener);
    election_join(owner);
    REQUIRE(is_of_process(owner, &mine));
    /* Processes that connect to the owner and send nothing, or nonsense, do not stop the election. */
    for (int i = 0; i < 100; i++) close(socket_connect("host", name));
    int curious = socket_connect("host", name);
    socket_send(curious, "GET / HTTP/1.1", 14, -1);
    close(curious);
    /* This also ends the election. */
    peers_release();
    REQUIRE(world_acquire(&mine) == TUTTI_OK);
    election_join(owner);
    REQUIRE(is_of_process(owner, &mine));
    peers_release();
}
static void test_stopped_owner_is_a_timeout(void **state)
{
    (void)state;
    begin_test(7);
    world_run(1, join_while_the_owner_is_stopped, 0);
}
/* Connects to the election's socket until its queue is full. The connections stay in the queue after their ends. */
static void fill_queue_of_owner(void)
{
    unsigned char name[KEY_BYTES];
    int socket;
    name_host(name);
    while ((socket = socket_connect("host", name)) >= 0) close(socket);
    REQUIRE(socket == -EAGAIN);
}
static void stop_and_await(pid_t process)
{
    siginfo_t stopped;
    REQUIRE(kill(process, SIGSTOP) == 0);
    REQUIRE(waitid(P_PID, (id_t)process, &stopped, WSTOPPED | WEXITED | WNOWAIT) == 0);
    REQUIRE(stopped.si_code == CLD_STOPPED);
}
/* A child of process 0 is elected. Process 0 fills its queue while it is stopped, lets it continue, and kills it. */
static void poll_an_owner_with_a_full_queue(void)
{
    enum { SHORT_MS = 100 };
    unsigned char owner[16];
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        struct identity mine;
        REQUIRE(world_acquire(&mine) == TUTTI_OK);
        election_join(owner);
        world_barrier(2);
        for (;;) pause();
    }
    struct identity mine;
    REQUIRE(world_acquire(&mine) == TUTTI_OK);
    world_barrier(2);
    election_join(owner);
    REQUIRE(!is_of_process(owner, &mine) && host_election_poll_owner(token, clock_ms() + JOIN_MS));
    stop_and_await(child);
    fill_queue_of_owner();
    REQUIRE(!host_election_poll_owner(token, clock_ms() + SHORT_MS));
    REQUIRE(kill(child, SIGCONT) == 0);
    REQUIRE(host_election_poll_owner(token, clock_ms() + JOIN_MS));
    stop_and_await(child);
    fill_queue_of_owner();
    REQUIRE(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    REQUIRE(!host_election_poll_owner(token, clock_ms() + JOIN_MS));
    host_election_leave(token);
    peers_release();
}
static void test_owner_with_a_full_queue_is_alive_only_if_it_answers(void **state)
{
    (void)state;
    begin_test(9);
    world_run(1, poll_an_owner_with_a_full_queue, 0);
}

unit_function test_host_election;
int test_host_election(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_processes_learn_of_the_first_one),
        cmocka_unit_test(test_processes_that_join_at_once_find_one_owner),
        cmocka_unit_test(test_another_owner_is_elected_after_a_death),
        cmocka_unit_test(test_threads_of_a_process_share_its_election),
        cmocka_unit_test(test_election_ignores_a_stranger_with_its_name),
        cmocka_unit_test(test_another_user_is_another_host),
        cmocka_unit_test(test_another_network_namespace_is_another_host),
        cmocka_unit_test(test_stopped_owner_is_a_timeout),
        cmocka_unit_test(test_owner_with_a_full_queue_is_alive_only_if_it_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
