/* The bootstrap gives all ranks the same table or the same error, which names missing ranks and shows both sides of a
   mismatch. Ranks are threads (store) or processes (unique id). */
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/random.h"
#include "backend/host/socket.h"
#include "backend/join/join_result.h"
#include "backend/join/member_table.h"
#include "backend/memory/memfd.h"
#include "backend/processes/handshake.h"
#include "backend/processes/peers.h"
#include "tests/support/unit.h"
#include "tests/unit/join/bootstrap_world.h"
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

/* ---- through a store, and by a unique id ---- */
static void run_both(const struct way *way, tutti_status status, const char *text)
{
    for (int by_id = 0; by_id < 2; by_id++) {
        struct outcome *outcomes = outcomes_create();
        struct store *s = store_create();
        if (by_id) run_id(way, outcomes);
        else run_store(way, s, outcomes);
        if (status == TUTTI_OK) expect_tables(way, outcomes);
        else expect_failure(way, outcomes, status, text);
        free(s);
        outcomes_destroy(outcomes);
    }
}
static void test_all_get_the_table(void **state)
{
    for (int size = 1; size <= MOST; size++) {
        struct way way = { .size = size, .odd_rank = -1, .timeout_ms = JOIN_MS };
        run_both(&way, TUTTI_OK, "");
    }
    (void)state;
}
static void test_missing_rank_is_named_by_all(void **state)
{
    struct way way = { .size = 5, .odd_rank = -1, .absent = 1 << 3, .timeout_ms = SHORT_MS };
    run_both(&way, TUTTI_TIMEOUT, "rank 3 of 5 has not joined test group within 1000 ms");
    (void)state;
}
static void test_missing_ranks_are_named_by_all(void **state)
{
    struct way way = { .size = 5, .odd_rank = -1, .absent = 1 << 1 | 1 << 4, .timeout_ms = SHORT_MS };
    run_both(&way, TUTTI_TIMEOUT, "ranks 1, 4 of 5 have not joined test group");
    (void)state;
}
static void test_missing_rank_0_is_named_by_all(void **state)
{
    struct way way = { .size = 3, .odd_rank = -1, .absent = 1 << 0, .timeout_ms = SHORT_MS };
    run_both(&way, TUTTI_TIMEOUT, "rank 0 of 3 has not joined test group");
    (void)state;
}
static void test_sizes_that_disagree_are_shown_to_all(void **state)
{
    struct way more = { .size = 4, .odd_rank = 2, .odd_size = 6, .timeout_ms = JOIN_MS };
    run_both(&more, TUTTI_MISMATCH, "rank 2 joins test group as a group of 6 ranks, rank 0 as one of 4");
    struct way less = { .size = 4, .odd_rank = 3, .odd_size = 3, .timeout_ms = JOIN_MS };
    run_both(&less, TUTTI_MISMATCH, "rank 3 joins test group as a group of 3 ranks, rank 0 as one of 4");
    (void)state;
}
static void test_builds_that_disagree_are_shown_to_all(void **state)
{
    struct way way = { .size = 3, .odd_rank = 1, .odd_build = 7, .timeout_ms = JOIN_MS };
    run_both(&way, TUTTI_MISMATCH, "rank 1 joins test group with a tutti built from other sources (00000007)");
    (void)state;
}
static void test_no_memory_is_an_error(void **state)
{
    struct way way = { .size = 1, .odd_rank = -1, .timeout_ms = JOIN_MS, .attempt = 3 };
    struct member mine = member_of(&way, 0);
    struct shared_table *table;
    struct key_id key;
    struct identity by;
    struct store *s = store_create();
    tutti_config config = { .store = { s, store_put, store_get } };
    tutti_unique_id id = { { 1 } };
    memory_fail_after(1);
    assert_int_equal(bootstrap_store(&config, &mine, &(struct terms){ 0 }, clock_deadline(JOIN_MS), &table, &key),
        TUTTI_NO_MEMORY);
    for (int n = 1; n <= 4; n++) {
        memory_fail_after(n);
        assert_true(bootstrap_id(&id, 0, &mine, clock_deadline(JOIN_MS), &table, &key) != TUTTI_OK);
    }
    memory_fail_after(0);
    /* The last failure came when the table was made. The result is an error, so no other process waits. */
    assert_false(peers_join_is_aborted(mine.token, &by));
    free(s);
    (void)state;
}

/* ---- by a unique id ---- */
static void test_rank_that_cannot_keep_the_table_aborts_the_join_of_all(void **state)
{
    /* Rank 1 has no memory for the records, or for the list of tables. */
    for (int n = 1; n <= 2; n++) {
        struct way way = { .size = 2, .odd_rank = -1, .timeout_ms = JOIN_MS, .attempt = 3 + n };
        struct member first = member_of(&way, 0), mine = member_of(&way, 1);
        struct outcome *outcomes = outcomes_create();
        struct shared_table *table;
        struct key_id key;
        struct identity by;
        tutti_unique_id id;
        int status;
        assert_int_equal(random_fill(&id, sizeof id), TUTTI_OK);
        pid_t child = fork();
        if (child == 0) rank_process(&way, 0, &id, &outcomes[0]);
        memory_fail_after(n);
        assert_int_equal(bootstrap_id(&id, 1, &mine, clock_deadline(JOIN_MS), &table, &key), TUTTI_NO_MEMORY);
        memory_fail_after(0);
        assert_true(peers_join_is_aborted(first.token, &by));
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        assert_int_equal(outcomes[0].status, TUTTI_OK);
        outcomes_destroy(outcomes);
    }
    (void)state;
}
static int count_open(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}
/* Makes the file of a table of MOST members. */
static int file_of_table(const struct way *way)
{
    struct member members[MOST];
    int descriptor;
    for (int r = 0; r < MOST; r++) members[r] = member_of(way, r);
    assert_int_equal(memfd_create_constant(members, sizeof members, "a test", &descriptor), TUTTI_OK);
    return descriptor;
}
static void test_file_of_a_table_serves_all_ranks_of_a_process(void **state)
{
    struct way way = { .size = MOST, .odd_rank = -1, .attempt = 6 }, other = { .size = MOST, .odd_rank = -1 };
    const struct member first = member_of(&way, 0);
    struct shared_table *one, *two;
    int before = count_open();
    /* A rank that receives no file cannot make the table, and the next one can. */
    assert_int_equal(member_table_keep_file(first.token, MOST, -1, &one), TUTTI_SYSTEM);
    assert_non_null(strstr(status_detail(), "too many open files in this process (see ulimit -n)"));
    assert_int_equal(member_table_keep_file(first.token, MOST, file_of_table(&other), &one), TUTTI_MISMATCH);
    assert_int_equal(member_table_keep_file(first.token, MOST - 1, file_of_table(&way), &one), TUTTI_SYSTEM);
    assert_int_equal(member_table_keep_file(first.token, MOST, file_of_table(&way), &one), TUTTI_OK);
    assert_int_equal(member_table_keep_file(first.token, MOST, -1, &two), TUTTI_OK);
    assert_ptr_equal(two, one);
    assert_int_equal(member_table_keep_file(first.token, MOST, file_of_table(&way), &two), TUTTI_OK);
    assert_int_equal(member_table_keep_file(first.token, MOST - 1, -1, &two), TUTTI_MISMATCH);
    for (int i = 0; i < 3; i++) shared_table_leave(one);
    assert_int_equal(count_open(), before);
    (void)state;
}
static void test_second_rank_0_of_an_id_is_an_error(void **state)
{
    struct way way = { .size = 2, .odd_rank = -1, .timeout_ms = JOIN_MS };
    struct member mine = member_of(&way, 0);
    struct shared_table *table;
    struct key_id key;
    unsigned char name[SHA256_BYTES], drawn[KEY_BYTES];
    tutti_unique_id id;
    assert_int_equal(random_fill(&id, sizeof id), TUTTI_OK);
    unique_id_derive(&id, name, drawn);
    int taken = socket_listen("id", name);
    assert_true(taken >= 0);
    assert_int_equal(bootstrap_id(&id, 0, &mine, clock_deadline(JOIN_MS), &table, &key), TUTTI_INVALID_ARGUMENT);
    assert_non_null(strstr(status_detail(), "another process is rank 0"));
    close(taken);
    (void)state;
}
static void test_rank_that_dies_is_named(void **state)
{
    struct way way = { .size = 4, .odd_rank = -1, .timeout_ms = JOIN_MS };
    struct outcome *outcomes = outcomes_create();
    tutti_unique_id id;
    assert_int_equal(random_fill(&id, sizeof id), TUTTI_OK);
    /* Rank 3 does not join. */
    pid_t children[3];
    for (int r = 0; r < 3; r++)
        if ((children[r] = fork()) == 0) rank_process(&way, r, &id, &outcomes[r]);
    /* After this time, ranks 1 and 2 have connected to rank 0. */
    sleep_ms(SHORT_MS);
    kill(children[2], SIGKILL);
    for (int r = 0; r < 3; r++) waitpid(children[r], NULL, 0);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(outcomes[r].status, TUTTI_PEER_LOST);
        assert_non_null(strstr(outcomes[r].detail, "rank 2 (process"));
        assert_non_null(strstr(outcomes[r].detail, "waited for rank 3 of 4"));
    }
    outcomes_destroy(outcomes);
    (void)state;
}
/* Opens 60 connections to rank 0, and sends an HTTP request, other bytes or nothing on them. */
static void connect_as_stranger(const tutti_unique_id *id)
{
    char nonsense[144];
    unsigned char name[SHA256_BYTES], drawn[KEY_BYTES];
    int sockets[60];
    unique_id_derive(id, name, drawn);
    memset(nonsense, 'x', sizeof nonsense);
    for (int i = 0; i < 60; i++) {
        for (int tries = 0; (sockets[i] = socket_connect("id", name)) < 0 && tries < 1000; tries++) sleep_ms(1);
        if (i % 3 == 0) socket_send(sockets[i], "GET / HTTP/1.1\r\n\r\n", 18, STDIN_FILENO);
        if (i % 3 == 1) socket_send(sockets[i], nonsense, sizeof nonsense, -1);
    }
    sleep_ms(60000);
    _exit(0);
}
static void test_strangers_do_not_take_a_place(void **state)
{
    struct way way = { .size = 3, .odd_rank = -1, .timeout_ms = JOIN_MS };
    struct outcome *outcomes = outcomes_create();
    tutti_unique_id id;
    pid_t children[3];
    assert_int_equal(random_fill(&id, sizeof id), TUTTI_OK);
    pid_t stranger = fork();
    if (stranger == 0) connect_as_stranger(&id);
    for (int r = 0; r < 3; r++) {
        if ((children[r] = fork()) == 0) rank_process(&way, r, &id, &outcomes[r]);
        sleep_ms(100);
    }
    for (int r = 0; r < 3; r++) assert_int_equal(waitpid(children[r], NULL, 0), children[r]);
    kill(stranger, SIGKILL);
    waitpid(stranger, NULL, 0);
    expect_tables(&way, outcomes);
    outcomes_destroy(outcomes);
    (void)state;
}

/* ---- a stopped rank 0, and many ranks ---- */
/* Rank 0 calls this poll and this clock_gettime in place of the library's. So a test can stop rank 0 after a poll and
   set its clock. */
/* The number of descriptors of the latest poll. `stopped` is 1 to stop rank 0 after its next poll, and 2 while it is
   stopped. */
static _Atomic int polled_count, stopped;
/* The time of the clock, which then stands still. 0: the clock of the system. */
static _Atomic int64_t seconds;
int poll(struct pollfd *polls, nfds_t count, int timeout_ms)
{
    struct timespec most = { timeout_ms / 1000, timeout_ms % 1000 * 1000000 };
    atomic_store(&polled_count, (int)count);
    int ready = (int)syscall(SYS_ppoll, polls, count, timeout_ms < 0 ? NULL : &most, NULL, 0);
    int running = 1;
    if (count > 1) atomic_compare_exchange_strong(&stopped, &running, 2);
    while (count > 1 && atomic_load(&stopped) == 2) sleep_ms(1);
    return ready;
}
int clock_gettime(clockid_t clock, struct timespec *out)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, out);
    if (atomic_load(&seconds)) *out = (struct timespec){ atomic_load(&seconds), 0 };
    return failed;
}
static void *join_by_id(void *context)
{
    rank_join(context, true);
    return NULL;
}
static int connect_to(const tutti_unique_id *id)
{
    unsigned char name[SHA256_BYTES], drawn[KEY_BYTES];
    int socket = -1;
    unique_id_derive(id, name, drawn);
    for (int tries = 0; (socket = socket_connect("id", name)) < 0 && tries < JOIN_MS; tries++) sleep_ms(1);
    assert_true(socket >= 0);
    return socket;
}
static void await_input(int socket)
{
    struct pollfd one = { .fd = socket, .events = POLLIN };
    assert_int_equal(poll(&one, 1, JOIN_MS), 1);
}
static struct handshake send_hello(int socket, const tutti_unique_id *id, const struct way *way, int rank)
{
    struct handshake h;
    struct key_id key;
    struct member me = member_of(way, rank);
    unsigned char name[SHA256_BYTES], drawn[KEY_BYTES];
    unique_id_derive(id, name, drawn);
    assert_int_equal(group_key_add(drawn, &key), TUTTI_OK);
    handshake_begin(&h, "tutti-i");
    await_input(socket);
    assert_int_equal(handshake_receive_opening(&h, socket), 1);
    assert_int_equal(handshake_send_hello(&h, &me.identity, name, &key, 0, socket), 0);
    return h;
}
static void send_record(int socket, struct handshake h, const struct way *way, int rank)
{
    await_input(socket);
    assert_int_equal(handshake_receive_answer(&h, socket), 1);
    struct {
        char magic[8];
        int32_t rank;
        uint32_t unused;
        struct member member;
    } message = { "tutti-i", rank, 0, member_of(way, rank) };
    assert_int_equal(socket_send(socket, &message, sizeof message, -1), 0);
}
static tutti_status result_receive(int socket, struct join_result *out)
{
    struct pollfd one = { .fd = socket, .events = POLLIN };
    assert_int_equal(poll(&one, 1, JOIN_MS), 1);
    assert_int_equal(socket_receive(socket, out, sizeof *out, NULL), sizeof *out);
    return (tutti_status)out->status;
}
static void await_polled(int connections)
{
    for (int tries = 0; atomic_load(&polled_count) != connections + 1 && tries < JOIN_MS; tries++) sleep_ms(1);
    assert_int_equal(atomic_load(&polled_count), connections + 1);
}
/* Rank 0 polls that number of connections, of which rank 1's is the first. Then rank 0 is stopped, one more process
   connects, and rank 1 sends its hello. Rank 0 continues `later` seconds later. */
static void join_when_stopped(int connections, int later)
{
    struct way way = { .size = 2, .odd_rank = -1, .timeout_ms = JOIN_MS };
    static struct outcome outcome;
    struct rank first = { .way = &way, .rank = 0, .outcome = &outcome };
    struct join_result result;
    pthread_t thread;
    int sockets[32];
    atomic_store(&seconds, 1000);
    assert_int_equal(random_fill(&first.id, sizeof first.id), TUTTI_OK);
    assert_int_equal(pthread_create(&thread, NULL, join_by_id, &first), 0);
    for (int i = 0; i < connections; i++) sockets[i] = connect_to(&first.id);
    await_polled(connections);
    atomic_store(&stopped, 1);
    sockets[connections] = connect_to(&first.id);
    for (int tries = 0; atomic_load(&stopped) != 2 && tries < JOIN_MS; tries++) sleep_ms(1);
    struct handshake h = send_hello(sockets[0], &first.id, &way, 1);
    atomic_store(&seconds, 1000 + later);
    atomic_store(&stopped, 0);
    send_record(sockets[0], h, &way, 1);
    assert_int_equal(result_receive(sockets[0], &result), TUTTI_OK);
    pthread_join(thread, NULL);
    atomic_store(&seconds, 0);
    assert_int_equal(outcome.status, TUTTI_OK);
    for (int i = 0; i <= connections; i++) close(sockets[i]);
}
static void test_hello_during_a_stop_of_rank_0_is_read(void **state)
{
    join_when_stopped(1, 5);
    (void)state;
}
static void test_hello_is_read_before_its_connection_is_dropped(void **state)
{
    join_when_stopped(2 + 16, 0);
    (void)state;
}
/* Rank 0 joins a group of 4 ranks, the others one of 40, for which rank 0 has no room. All ranks get the error. */
static void test_all_ranks_of_a_larger_group_get_the_mismatch(void **state)
{
    enum { OWN_SIZE = 4, THEIR_SIZE = 40 };
    struct way way = { .size = OWN_SIZE, .odd_rank = -1, .timeout_ms = JOIN_MS }, theirs = way;
    static struct outcome outcome;
    struct rank first = { .way = &way, .rank = 0, .outcome = &outcome };
    struct join_result result;
    pthread_t thread;
    int sockets[THEIR_SIZE];
    theirs.size = THEIR_SIZE;
    assert_int_equal(random_fill(&first.id, sizeof first.id), TUTTI_OK);
    assert_int_equal(pthread_create(&thread, NULL, join_by_id, &first), 0);
    /* The ranks that rank 0 expects join last. */
    for (int r = THEIR_SIZE - 1; r > 0; r--) {
        sockets[r] = connect_to(&first.id);
        send_record(sockets[r], send_hello(sockets[r], &first.id, &theirs, r), &theirs, r);
    }
    for (int r = 1; r < THEIR_SIZE; r++) {
        assert_int_equal(result_receive(sockets[r], &result), TUTTI_MISMATCH);
        assert_non_null(strstr(result.detail, "joins test group as a group of 40 ranks, rank 0 as one of 4"));
        close(sockets[r]);
    }
    pthread_join(thread, NULL);
    assert_int_equal(outcome.status, TUTTI_MISMATCH);
    (void)state;
}
unit_function test_bootstrap;
int test_bootstrap(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_get_the_table),
        cmocka_unit_test(test_missing_rank_is_named_by_all),
        cmocka_unit_test(test_missing_ranks_are_named_by_all),
        cmocka_unit_test(test_missing_rank_0_is_named_by_all),
        cmocka_unit_test(test_sizes_that_disagree_are_shown_to_all),
        cmocka_unit_test(test_builds_that_disagree_are_shown_to_all),
        cmocka_unit_test(test_no_memory_is_an_error),
        cmocka_unit_test(test_rank_that_cannot_keep_the_table_aborts_the_join_of_all),
        cmocka_unit_test(test_file_of_a_table_serves_all_ranks_of_a_process),
        cmocka_unit_test(test_second_rank_0_of_an_id_is_an_error),
        cmocka_unit_test(test_rank_that_dies_is_named),
        cmocka_unit_test(test_strangers_do_not_take_a_place),
        cmocka_unit_test(test_hello_during_a_stop_of_rank_0_is_read),
        cmocka_unit_test(test_hello_is_read_before_its_connection_is_dropped),
        cmocka_unit_test(test_all_ranks_of_a_larger_group_get_the_mismatch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
