/* Who is on one host: processes and threads that claim a token learn of the same first process, whoever else is
   about. */
#include "backend/base/clock.h"
#include "backend/base/status.h"
#include "backend/host/socket.h"
#include "backend/processes/host_election.h"
#include "backend/processes/registry.h"
#include "tests/support/unit.h"
#include "tests/unit/processes/peers_world.h"
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

static unsigned char token[16];                         /* of this test's group: no other process has it */
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
static void name_host(unsigned char out[KEY_BYTES])     /* of the socket; 16 bytes count */
{
    REQUIRE(group_key_derive(&world_key, "tutti host", token, sizeof token, out));
}
static void claim(unsigned char out[16])
{
    REQUIRE(host_election_join(token, &world_key, clock_ms() + JOIN_MS, out) == TUTTI_OK);
}
static void release(int descriptors)
{
    host_election_leave(token);
    REQUIRE(descriptors_settle_at(descriptors));
    peers_release();
}

/* ---- processes ---- */
static void claim_in_turn(void)                         /* process 1 first; process 2 is of another group */
{
    unsigned char owner[16];
    world_join();
    int before = count_descriptors();
    if (rank == 2) token[8] ^= 1;
    if (rank == 1) claim(owner);
    world_barrier(size);
    if (rank != 1) claim(owner);
    REQUIRE(is_of(owner, rank == 2 ? 2 : 1));
    world_barrier(size);
    release(before);
}
static void test_all_learn_who_was_first(void **state)
{
    (void)state;
    begin_test(1);
    world_run(4, claim_in_turn, 0);
}
static void claim_at_once(void)
{
    unsigned char owner[16];
    world_join();
    claim(owner);
    int first = 0;
    while (first < size && !is_of(owner, first)) first++;
    REQUIRE(first < size);
    atomic_fetch_add(&world->skip, first);              /* all say the same */
    world_barrier(size);
    REQUIRE(atomic_load(&world->skip) == first * size);
    host_election_leave(token);
    peers_release();
}
static void test_at_once_there_is_one_first(void **state)
{
    (void)state;
    begin_test(2);
    for (int i = 0; i < 10; i++) world_run(MOST, claim_at_once, 0);
}
static void claim_after_a_death(void)
{
    unsigned char owner[16];
    world_join();
    if (rank == 0) claim(owner);
    world_barrier(size);
    if (rank == 0) raise(SIGKILL);
    int64_t until = clock_ms() + GENEROUS_MS;
    for (int socket; (socket = socket_connect("peer", world->identity[0].nonce)) >= 0; sleep_ms(1)) {
        close(socket);
        REQUIRE(clock_ms() < until);
    }
    if (rank == 1) claim(owner);
    world_barrier(size - 1);
    if (rank == 2) claim(owner);
    REQUIRE(is_of(owner, 1));
    world_barrier(size - 1);
    host_election_leave(token);
    peers_release();
}
static void test_after_the_first_has_died_there_is_another(void **state)
{
    (void)state;
    begin_test(3);
    world_run(3, claim_after_a_death, 1);
}

/* ---- threads ---- */
static void *claim_main(void *owner)
{
    claim(owner);
    return NULL;
}
static void claim_by_threads(void)
{
    enum { THREADS = 8 };
    unsigned char owners[THREADS][16];
    pthread_t threads[THREADS];
    world_join();
    int before = count_descriptors();
    for (int i = 0; i < THREADS; i++) REQUIRE(pthread_create(&threads[i], NULL, claim_main, owners[i]) == 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) REQUIRE(nonce_equal(owners[i], owners[0]));
    world_barrier(size);
    for (int i = 1; i < THREADS; i++) host_election_leave(token);
    unsigned char again[16];
    claim(again);                                       /* one thread holds it still */
    REQUIRE(nonce_equal(again, owners[0]));
    host_election_leave(token);
    release(before);
}
static void test_threads_of_a_process_claim_together(void **state)
{
    (void)state;
    begin_test(4);
    world_run(2, claim_by_threads, 0);
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
static void claim_beside_strangers(void)                /* the last process has that name, and is no rank */
{
    unsigned char owner[16], name[KEY_BYTES];
    if (rank == size - 1) {                             /* it has been told the name, as others may read it in /proc */
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
    claim(owner);
    REQUIRE(is_of(owner, 0) || is_of(owner, 1));
    atomic_fetch_add(&world->skip, is_of(owner, 1));
    world_barrier(size - 1);
    REQUIRE(atomic_load(&world->skip) == (is_of(owner, 1) ? 2 : 0));
    world_barrier(size - 1);
    host_election_leave(token);
    peers_release();
}
static void test_a_name_of_strangers_is_passed_by(void **state)
{
    (void)state;
    begin_test(5);
    world_run(3, claim_beside_strangers, 0);
}
static void claim_as_two_users(void)                    /* processes 0 and 1 as this user, 2 and 3 as another */
{
    unsigned char owner[16];
    if (geteuid() != 0) _exit(SKIPPED);
    if (rank >= 2) REQUIRE(setresuid(65534, 65534, 65534) == 0);
    world_join();
    claim(owner);
    REQUIRE(is_of(owner, rank / 2 * 2) || is_of(owner, rank / 2 * 2 + 1));
    world_barrier(size);
    host_election_leave(token);
    peers_release();
}
static void test_another_user_is_another_host(void **state)
{
    (void)state;
    begin_test(6);
    world_run(4, claim_as_two_users, 0);
}
static void claim_in_two_namespaces(void)               /* of the network, as containers have them */
{
    unsigned char owner[16];
    if (rank == 2) REQUIRE(unshare(CLONE_NEWNET) == 0);
    world_join();
    claim(owner);
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
    world_run(3, claim_in_two_namespaces, 0);
}
static void claim_from_one_who_is_stopped(void)
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
    claim(owner);
    REQUIRE(is_of_process(owner, &mine));
    for (int i = 0; i < 100; i++) close(socket_connect("host", name));        /* and ask nothing */
    int curious = socket_connect("host", name);
    socket_send(curious, "GET / HTTP/1.1", 14, -1);
    close(curious);
    peers_release();                                    /* what it has claimed goes with it */
    REQUIRE(world_acquire(&mine) == TUTTI_OK);
    claim(owner);
    REQUIRE(is_of_process(owner, &mine));
    peers_release();
}
static void test_who_is_stopped_is_not_awaited_for_ever(void **state)
{
    (void)state;
    begin_test(7);
    world_run(1, claim_from_one_who_is_stopped, 0);
}

unit_function test_host_election;
int test_host_election(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_learn_who_was_first),
        cmocka_unit_test(test_at_once_there_is_one_first),
        cmocka_unit_test(test_after_the_first_has_died_there_is_another),
        cmocka_unit_test(test_threads_of_a_process_claim_together),
        cmocka_unit_test(test_a_name_of_strangers_is_passed_by),
        cmocka_unit_test(test_another_user_is_another_host),
        cmocka_unit_test(test_another_network_namespace_is_another_host),
        cmocka_unit_test(test_who_is_stopped_is_not_awaited_for_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
