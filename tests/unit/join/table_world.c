/* A store that has only the table, and processes that send it or read it there. */
#include "tests/unit/join/table_world.h"
#include "backend/base/clock.h"
#include "backend/join/join_result.h"
#include "backend/processes/host_election.h"
#include "tests/support/unit.h"
#include <sys/mman.h>

_Atomic int *reads;
struct member members[RANKS], first;
void (*at_read)(void);
int at_read_process = -1;
bool is_elected, cancels, fails_reads;

static tutti_status table_get(void *context, const char *key, void *value, size_t capacity, size_t *bytes,
    int64_t timeout_ms)
{
    (void)context;
    (void)timeout_ms;
    REQUIRE(strstr(key, "/members0") && capacity == TABLE_BYTES);
    if (fails_reads) return TUTTI_SYSTEM;
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
void table_begin(void)
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
struct member_table_request table_request_of(int r)
{
    static _Thread_local tutti_config config;
    config = (tutti_config){ .rank = r, .size = RANKS, .store = store, .is_cancelled = is_cancelled };
    return member_table_request_make(&config, &first, &members[r], &world_key, clock_deadline(JOIN_MS));
}
struct shared_table *table_send(void)
{
    struct member_table_request request = table_request_of(0);
    struct member *own = calloc(RANKS, sizeof *own);
    struct shared_table *table;
    int descriptor;
    memcpy(own, members, sizeof members);
    REQUIRE(member_table_create(&request, own, &table, &descriptor) == TUTTI_OK && descriptor >= 0);
    REQUIRE(host_table_send(&request.host, shared_table_data(table), descriptor) == TUTTI_OK);
    return table;
}
struct shared_table *table_receive(int r)
{
    struct shared_table *table;
    struct member_table_request request = table_request_of(r);
    REQUIRE(member_table_get(&request, &table) == TUTTI_OK);
    REQUIRE(memcmp(shared_table_data(table), members, TABLE_BYTES) == 0);
    return table;
}
void table_end(struct shared_table *table, int descriptors)
{
    shared_table_leave(table);
    REQUIRE(descriptors_settle_at(descriptors));
    /* Another process that ends closes its connections. */
    world_barrier(size);
    peers_release();
}
void table_run(void (*body)(void), unsigned victims, int expected_reads)
{
    reads = mmap(NULL, sizeof *reads, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(reads != MAP_FAILED);
    world_run(PROCESSES, body, victims);
    assert_int_equal(atomic_load(reads), expected_reads);
    munmap(reads, sizeof *reads);
    at_read_process = -1;
    is_elected = cancels = fails_reads = false;
}
int table_connect_all(void)
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
void table_elect(void)
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
