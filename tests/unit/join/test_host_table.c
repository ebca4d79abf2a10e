/* One process of a host reads the table of members, and the others get it as a sealed file. If that fails in any way,
   each of the others reads the table itself. */
#include "backend/base/clock.h"
#include "backend/base/status.h"
#include "backend/join/join_result.h"
#include "backend/join/member_table.h"
#include "backend/memory/memfd.h"
#include "backend/processes/host_election.h"
#include "tests/support/unit.h"
#include "tests/unit/processes/peers_world.h"
#include <assert.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

/* The ranks of the group are in PROCESSES processes: rank r in process r % PROCESSES. */
enum { PROCESSES = 3, RANKS = 30, TABLE_BYTES = RANKS * sizeof(struct member) };
static_assert((int)TABLE_BYTES >= (int)SHARED_TABLE_LEAST, "the table is shared");
/* The number of times that processes have read the table from the store. */
static _Atomic int *reads;
static struct member members[RANKS];
/* The test's actions in the store: the process with that number runs it when it reads the table. */
static void (*at_read)(void);
static int at_read_process = -1;
/* The elected process sends the table, and rank 0 is on another host. Otherwise rank 0 sends it. */
static bool is_elected;
static bool cancels;

static tutti_status table_get(void *context, const char *key, void *value, size_t capacity, size_t *bytes,
    int64_t timeout_ms)
{
    (void)context;
    (void)timeout_ms;
    REQUIRE(strstr(key, "/members0") && capacity == TABLE_BYTES);
    if (at_read_process == rank) at_read();
    atomic_fetch_add(reads, 1);
    memcpy(value, members, TABLE_BYTES);
    *bytes = TABLE_BYTES;
    return TUTTI_OK;
}
static bool is_cancelled(void *context)
{
    (void)context;
    return cancels;
}
static const tutti_store store = { NULL, NULL, table_get };
/* The record of rank 0. */
static struct member first;
/* Joins the world, after which all processes have the same table. */
static void table_begin(void)
{
    world_join();
    memset(members, 0, sizeof members);
    for (int r = 0; r < RANKS; r++) {
        members[r] = (struct member){ .size = RANKS, .build = 1, .group = "test group" };
        members[r].identity = world->identity[r % PROCESSES];
        memset(members[r].host_token, 7, sizeof members[r].host_token);
        memcpy(members[r].token, world->key, sizeof members[r].token);
    }
    first = members[0];
    if (!is_elected) return;
    memset(first.host_token, 8, sizeof first.host_token);
    memset(first.identity.nonce, 9, sizeof first.identity.nonce);
}
static struct member_table_request request_of(int r)
{
    static _Thread_local tutti_config config;
    config = (tutti_config){ .rank = r, .size = RANKS, .store = store, .is_cancelled = is_cancelled };
    return member_table_request_make(&config, &first, &members[r], &world_key, clock_deadline(JOIN_MS));
}
/* Process 0, as rank 0: makes the table and sends it. */
static struct shared_table *table_send(void)
{
    struct member_table_request request = request_of(0);
    struct member *own = calloc(RANKS, sizeof *own);
    struct shared_table *table;
    int descriptor;
    memcpy(own, members, sizeof members);
    REQUIRE(member_table_create(&request, own, &table, &descriptor) == TUTTI_OK && descriptor >= 0);
    host_table_send(&request.host, shared_table_data(table), descriptor);
    return table;
}
static struct shared_table *table_receive(int r)
{
    struct shared_table *table;
    struct member_table_request request = request_of(r);
    REQUIRE(member_table_get(&request, &table) == TUTTI_OK);
    REQUIRE(memcmp(shared_table_data(table), members, TABLE_BYTES) == 0);
    return table;
}
/* Checks that no descriptor is left, and ends this process's part. */
static void table_end(struct shared_table *table, int descriptors)
{
    shared_table_leave(table);
    REQUIRE(descriptors_settle_at(descriptors));
    /* Another process that ends closes its connections. */
    world_barrier(size);
    peers_release();
}
/* Runs `body` in all processes. Then the table must have been read that often. */
static void run(void (*body)(void), unsigned victims, int expected_reads)
{
    reads = mmap(NULL, sizeof *reads, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(reads != MAP_FAILED);
    world_run(PROCESSES, body, victims);
    assert_int_equal(atomic_load(reads), expected_reads);
    munmap(reads, sizeof *reads);
    at_read_process = -1;
    is_elected = cancels = false;
}
/* Connects all processes, so that no socket is made later. Returns the number of descriptors. */
static int connect_all(void)
{
    struct peer *peers[MOST] = { NULL };
    int expected = count_descriptors() + PROCESSES - 1;
    world_barrier(size);
    world_connect_all(peers);
    world_release_all(peers);
    REQUIRE(descriptors_settle_at(expected));
    world_barrier(size);
    return expected;
}

/* ---- one table on each host ---- */
static void share_from_rank_0(void)
{
    table_begin();
    int descriptors = connect_all();
    struct shared_table *table = rank == 0 ? table_send() : table_receive(rank);
    /* Another rank of the process has the same table. */
    struct shared_table *other = table_receive(rank + PROCESSES);
    REQUIRE(shared_table_data(other) == shared_table_data(table));
    shared_table_leave(other);
    /* No process can write it. */
    REQUIRE(mprotect((void *)(uintptr_t)shared_table_data(table), 1, PROT_READ) == 0);
    world_barrier(size);
    table_end(table, descriptors);
}
static void test_process_of_rank_0_sends_the_table(void **state)
{
    (void)state;
    run(share_from_rank_0, 0, 0);
}
/* Process 1 wins the election. */
static void elect(void)
{
    unsigned char owner[16];
    for (int turn = 0; turn < 2; turn++) {
        if ((rank == 1) == (turn == 0))
            REQUIRE(host_election_join(first.token, &world_key, clock_ms() + JOIN_MS, owner) == TUTTI_OK);
        world_barrier(size);
    }
    REQUIRE(host_election_is_won(first.token) == (rank == 1));
    REQUIRE(host_election_poll_owner(first.token, clock_ms() + JOIN_MS));
    world_barrier(size);
}
static void share_from_elected(void)
{
    table_begin();
    int descriptors = connect_all();
    elect();
    struct shared_table *table = table_receive(rank + PROCESSES);
    host_election_leave(first.token);
    world_barrier(size);
    table_end(table, descriptors);
}
static void test_elected_process_reads_and_sends_the_table(void **state)
{
    (void)state;
    is_elected = true;
    run(share_from_elected, 0, 1);
}
static void *receive_on_thread(void *context) { return table_receive(*(const int *)context); }
/* Ranks of one process ask for the table at once. */
static void share_with_threads(void)
{
    enum { THREADS = 4 };
    int ranks[THREADS];
    pthread_t threads[THREADS];
    void *tables[THREADS];
    table_begin();
    elect();
    for (int i = 0; i < THREADS; i++) ranks[i] = rank + PROCESSES * (i + 1);
    for (int i = 0; i < THREADS; i++) REQUIRE(!pthread_create(&threads[i], NULL, receive_on_thread, &ranks[i]));
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], &tables[i]);
    for (int i = 0; i < THREADS; i++) REQUIRE(tables[i] == tables[0]);
    for (int i = 0; i < THREADS; i++) shared_table_leave(tables[i]);
    host_election_leave(first.token);
    world_barrier(size);
    peers_release();
}
static void test_threads_of_a_process_have_one_table(void **state)
{
    (void)state;
    is_elected = true;
    run(share_with_threads, 0, 1);
}

/* ---- a sender that fails ---- */
static void die(void) { raise(SIGKILL); }
static void receive_after_death(void)
{
    table_begin();
    elect();
    struct shared_table *table = table_receive(rank + PROCESSES);
    host_election_leave(first.token);
    shared_table_leave(table);
    peers_release();
}
static void test_others_read_the_table_if_its_reader_dies(void **state)
{
    (void)state;
    is_elected = true;
    at_read_process = 1;
    at_read = die;
    run(receive_after_death, 1 << 1, 2);
}
static void wait_for_others(void)
{
    /* A signal of a process that has read the table continues this one. */
    raise(SIGSTOP);
}
static void receive_past_stopped(void)
{
    table_begin();
    elect();
    struct shared_table *table = table_receive(rank + PROCESSES);
    if (rank != 1) {
        while (atomic_load(reads) < 2) sleep_ms(1);
        kill((pid_t)world->identity[1].pid, SIGCONT);
    }
    world_barrier(size);
    host_election_leave(first.token);
    /* The descriptors that the stopped process has sent at last were closed. */
    shared_table_leave(table);
    peers_release();
}
static void test_others_read_the_table_if_its_reader_is_stopped(void **state)
{
    (void)state;
    is_elected = true;
    at_read_process = 1;
    at_read = wait_for_others;
    run(receive_past_stopped, 0, 3);
}
static void receive_after_death_of_rank_0(void)
{
    table_begin();
    connect_all();
    if (rank == 0) die();
    shared_table_leave(table_receive(rank));
    peers_release();
}
static void test_others_read_the_table_if_rank_0_dies(void **state)
{
    (void)state;
    run(receive_after_death_of_rank_0, 1 << 0, 2);
}

/* ---- descriptors that cannot be used ---- */
static void receive_without_room(void)
{
    struct rlimit before;
    table_begin();
    int descriptors = connect_all();
    if (rank == 1) {
        REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
        struct rlimit none = { 0, before.rlim_max };
        REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
    }
    world_barrier(size);
    struct shared_table *table = rank == 0 ? table_send() : table_receive(rank);
    if (rank == 1) REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
    world_barrier(size);
    table_end(table, descriptors);
}
static void test_process_without_free_descriptors_reads_the_table(void **state)
{
    (void)state;
    run(receive_without_room, 0, 1);
}
static void send_without_descriptors(void)
{
    struct rlimit before;
    struct shared_table *table;
    table_begin();
    int descriptors = connect_all(), descriptor;
    if (rank == 0) {
        struct member_table_request request = request_of(0);
        struct member *own = calloc(RANKS, sizeof *own);
        memcpy(own, members, sizeof members);
        REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
        struct rlimit none = { 0, before.rlim_max };
        REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
        REQUIRE(member_table_create(&request, own, &table, &descriptor) == TUTTI_OK && descriptor == -1);
        REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
        REQUIRE(memcmp(shared_table_data(table), members, TABLE_BYTES) == 0);
        host_table_send(&request.host, shared_table_data(table), descriptor);
    } else table = table_receive(rank);
    world_barrier(size);
    table_end(table, descriptors);
}
static void test_table_that_cannot_be_sent_is_read_by_each(void **state)
{
    (void)state;
    run(send_without_descriptors, 0, 2);
}
/* The files that process 0 sends in the place of a table. */
enum forged { UNSEALED, WRITABLE, SHORT, SPARSE, UNPRINTABLE, FORGED };
static enum forged forged;
static int forge(void)
{
    int descriptor = -1, all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
    struct member bad[RANKS];
    memcpy(bad, members, sizeof bad);
    bad[RANKS - 1].identity.host[0] = '\n';
    if (forged == UNPRINTABLE) {
        REQUIRE(memfd_create_constant(bad, sizeof bad, "a table", &descriptor) == TUTTI_OK);
        return descriptor;
    }
    descriptor = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(ftruncate(descriptor, TABLE_BYTES - (forged == SHORT)) == 0);
    if (forged != SPARSE) REQUIRE(pwrite(descriptor, members, TABLE_BYTES - 1, 0) == TABLE_BYTES - 1);
    if (forged == WRITABLE) all &= ~F_SEAL_WRITE;
    if (forged != UNSEALED) REQUIRE(fcntl(descriptor, F_ADD_SEALS, all) == 0);
    return descriptor;
}
static void receive_forged(void)
{
    unsigned char token[KEY_BYTES];
    struct peer *peers[MOST] = { NULL };
    struct shared_table *table = NULL;
    table_begin();
    int descriptors = connect_all();
    REQUIRE(group_key_derive(&world_key, "tutti table", first.token, sizeof first.token, token));
    if (rank == 0) {
        int descriptor = forge();
        world_connect_all(peers);
        for (int p = 1; p < size; p++) REQUIRE(peer_send_descriptor(peers[p], token, descriptor) == TUTTI_OK);
        world_release_all(peers);
        close(descriptor);
    } else table = table_receive(rank);
    world_barrier(size);
    table_end(table, descriptors);
}
static void test_file_that_may_change_or_fault_is_not_used(void **state)
{
    (void)state;
    for (forged = UNSEALED; forged < FORGED; forged++) run(receive_forged, 0, 2);
}
/* Process 2 has another key than the others: it is no process of the group. */
static void send_past_stranger(void)
{
    table_begin();
    struct shared_table *table = NULL;
    int descriptors = count_descriptors();
    if (rank == 2) {
        const unsigned char wrong[KEY_BYTES] = { 1 };
        group_keys_forget();
        REQUIRE(group_key_add(wrong, &world_key) == TUTTI_OK);
    }
    world_barrier(size);
    if (rank == 0) table = table_send();
    if (rank == 1) table = table_receive(rank);
    world_barrier(size);
    /* The stranger has got no descriptor. */
    if (rank == 2) REQUIRE(descriptors_settle_at(descriptors));
    world_barrier(size);
    shared_table_leave(table);
    peers_release();
}
static void test_stranger_gets_no_table(void **state)
{
    (void)state;
    run(send_past_stranger, 0, 0);
}
static void send_to_cancelled(void)
{
    struct shared_table *table = NULL;
    table_begin();
    int descriptors = connect_all();
    if (rank == 1) {
        struct member_table_request request = request_of(rank);
        cancels = true;
        REQUIRE(member_table_get(&request, &table) == TUTTI_ABORTED && !table);
        REQUIRE(strstr(status_detail(), "rank 1 has cancelled joining test group"));
    }
    world_barrier(size);
    if (rank == 0) table = table_send();
    if (rank == 2) table = table_receive(rank);
    world_barrier(size);
    /* The descriptor that has arrived for rank 1 was closed. */
    table_end(table, descriptors);
}
static void test_descriptor_that_arrives_late_is_closed(void **state)
{
    (void)state;
    run(send_to_cancelled, 0, 0);
}

unit_function test_host_table;
int test_host_table(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_process_of_rank_0_sends_the_table),
        cmocka_unit_test(test_elected_process_reads_and_sends_the_table),
        cmocka_unit_test(test_threads_of_a_process_have_one_table),
        cmocka_unit_test(test_others_read_the_table_if_its_reader_dies),
        cmocka_unit_test(test_others_read_the_table_if_its_reader_is_stopped),
        cmocka_unit_test(test_others_read_the_table_if_rank_0_dies),
        cmocka_unit_test(test_process_without_free_descriptors_reads_the_table),
        cmocka_unit_test(test_table_that_cannot_be_sent_is_read_by_each),
        cmocka_unit_test(test_file_that_may_change_or_fault_is_not_used),
        cmocka_unit_test(test_stranger_gets_no_table),
        cmocka_unit_test(test_descriptor_that_arrives_late_is_closed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
