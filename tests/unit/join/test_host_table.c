/* One process of a host reads the table of members, and the others get it as a sealed file. If that fails in any way,
   each of the others reads the table itself. */
#include "backend/base/status.h"
#include "backend/memory/memfd.h"
#include "tests/support/unit.h"
#include "tests/unit/join/table_world.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

/* ---- one table on each host ---- */
static void share_from_rank_0(void)
{
    table_begin();
    int descriptors = table_connect_all();
    struct shared_table *table = rank == 0 ? table_send() : table_receive(rank);
    /* Another rank of the process has the same table. */
    struct shared_table *other = table_receive(rank + PROCESSES);
    REQUIRE(shared_table_data(other) == shared_table_data(table));
    shared_table_leave(other);
    world_barrier(size);
    table_end(table, descriptors);
}
static void test_process_of_rank_0_sends_the_table(void **state)
{
    (void)state;
    table_run(share_from_rank_0, 0, 0);
}
static void share_from_elected(void)
{
    table_begin();
    int descriptors = table_connect_all();
    table_elect();
    struct shared_table *table = table_receive(rank + PROCESSES);
    host_election_leave(first.token);
    world_barrier(size);
    table_end(table, descriptors);
}
static void test_elected_process_reads_and_sends_the_table(void **state)
{
    (void)state;
    is_elected = true;
    table_run(share_from_elected, 0, 1);
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
    table_elect();
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
    table_run(share_with_threads, 0, 1);
}

/* ---- a sender that fails ---- */
static void process_kill_itself(void) { raise(SIGKILL); }
static void receive_after_death(void)
{
    table_begin();
    table_elect();
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
    at_read = process_kill_itself;
    table_run(receive_after_death, 1 << 1, 2);
}
static void wait_for_others(void)
{
    /* A signal of a process that has read the table continues this one. */
    raise(SIGSTOP);
}
static void receive_past_stopped(void)
{
    table_begin();
    table_elect();
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
    table_run(receive_past_stopped, 0, 3);
}
static void receive_after_death_of_rank_0(void)
{
    table_begin();
    table_connect_all();
    if (rank == 0) process_kill_itself();
    shared_table_leave(table_receive(rank));
    peers_release();
}
static void test_others_read_the_table_if_rank_0_dies(void **state)
{
    (void)state;
    table_run(receive_after_death_of_rank_0, 1 << 0, 2);
}

/* ---- descriptors that cannot be used ---- */
static void receive_without_room(void)
{
    struct rlimit before;
    table_begin();
    int descriptors = table_connect_all();
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
    table_run(receive_without_room, 0, 1);
}
static void send_without_descriptors(void)
{
    struct rlimit before;
    struct shared_table *table;
    table_begin();
    int descriptors = table_connect_all(), descriptor;
    if (rank == 0) {
        struct member_table_request request = table_request_of(0);
        struct member *own = calloc(RANKS, sizeof *own);
        memcpy(own, members, sizeof members);
        REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
        struct rlimit none = { 0, before.rlim_max };
        REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
        REQUIRE(member_table_create(&request, own, &table, &descriptor) == TUTTI_OK && descriptor == -1);
        REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
        REQUIRE(memcmp(shared_table_data(table), members, TABLE_BYTES) == 0);
        REQUIRE(host_table_send(&request.host, shared_table_data(table), descriptor) == TUTTI_OK);
    } else table = table_receive(rank);
    world_barrier(size);
    table_end(table, descriptors);
}
static void test_table_that_cannot_be_sent_is_read_by_each(void **state)
{
    (void)state;
    table_run(send_without_descriptors, 0, 2);
}
/* The files that process 0 sends in the place of a table. */
enum forged { UNSEALED, WRITABLE, SHORT, SPARSE, UNPRINTABLE, FORGED };
static enum forged forged;
static int table_forge(void)
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
    int descriptors = table_connect_all();
    REQUIRE(group_key_derive(&world_key, "tutti table", first.token, sizeof first.token, token));
    if (rank == 0) {
        int descriptor = table_forge();
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
    for (forged = UNSEALED; forged < FORGED; forged++) table_run(receive_forged, 0, 2);
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
    table_run(send_past_stranger, 0, 0);
}
static void send_to_cancelled(void)
{
    struct shared_table *table = NULL;
    table_begin();
    int descriptors = table_connect_all();
    if (rank == 1) {
        struct member_table_request request = table_request_of(rank);
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
    table_run(send_to_cancelled, 0, 0);
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
