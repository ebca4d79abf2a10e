/* Snapshots of this process (engine/snapshot.h), written here and answered on its socket. */
#include "backend/base/clock.h"
#include "backend/control/lifetime.h"
#include "backend/control/snapshot_socket.h"
#include "backend/engine/snapshot.h"
#include "backend/host/socket.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <errno.h>
#include <pthread.h>

enum { ROOM = 1 << 16 };
/* Writes snapshots until one has the text, and not null behind it, and returns it. The caller frees it. */
static char *snapshot_await(const char *text)
{
    char *snapshot = malloc(ROOM);
    const char *found;
    size_t bytes;
    do {
        sleep_us(100);
        snapshot_write_process(snapshot, ROOM, &bytes);
        REQUIRE(bytes < ROOM && strlen(snapshot) == bytes);
        found = strstr(snapshot, text);
    } while (!found || found[strlen(text)] == 'n');
    return snapshot;
}
static bool snapshot_has(const char *text)
{
    char *snapshot = snapshot_await("{");
    bool found = strstr(snapshot, text) != NULL;
    free(snapshot);
    return found;
}

/* ---- what ranks do ---- */
/* Rank 1 waits in a collective until rank 0 has seen this. */
static void wait_in_collective(struct rank *me)
{
    float x = 1;
    if (me->rank == 0) {
        char *snapshot = snapshot_await("\"calls\": 1, \"on_streams\": false, ");
        free(snapshot);
        snapshot = snapshot_await("\"open\": {\"kind\": \"collective\", \"age_s\": ");
        /* Rank 0 has waited for no rank. */
        REQUIRE(strstr(snapshot,
            "{\"rank\": 0, \"calls\": 0, \"has_left\": false, \"late_calls\": 0, \"late_s\": 0.000, \"call\": \"\"}"));
        REQUIRE(strstr(snapshot,
            "{\"rank\": 1, \"calls\": 1, \"has_left\": false, \"late_calls\": 0, \"late_s\": 0.000, "
            "\"call\": \"allreduce(1 x float32, sum, algorithm "));
        free(snapshot);
    }
    REQUIRE(tutti_all_reduce(&x, &x, 1, TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL) == TUTTI_OK);
    world_meet(me);
    REQUIRE(!snapshot_has("\"open\": {"));
    world_meet(me);
}
static void test_waiting_rank_shows_its_collective(void **state)
{
    (void)state;
    world_threads(2, NULL, wait_in_collective, NULL);
    assert_true(snapshot_has("\"groups\": []}"));
}
/* Rank 1 waits in a receive, and then for any rank. */
static void wait_in_receive(struct rank *me)
{
    float x = 1;
    if (me->rank == 0) {
        free(snapshot_await("\"kind\": \"receive\", \"peer\": 0, \"tag\": 7, \"bytes\": 4, \"age_s\": "));
        REQUIRE(tutti_send(&x, 1, TUTTI_FLOAT32, 1, 7, me->comm, NULL) == TUTTI_OK);
        free(snapshot_await("\"kind\": \"receive\", \"peer\": null, \"tag\": 8, \"bytes\": 4, \"age_s\": "));
        REQUIRE(tutti_send(&x, 1, TUTTI_FLOAT32, 1, 8, me->comm, NULL) == TUTTI_OK);
    } else {
        REQUIRE(tutti_recv(&x, 1, TUTTI_FLOAT32, 0, 7, me->comm, NULL) == TUTTI_OK);
        REQUIRE(tutti_recv(&x, 1, TUTTI_FLOAT32, TUTTI_ANY_SOURCE, 8, me->comm, NULL) == TUTTI_OK);
    }
}
/* Rank 1 waits in one receive after the other, and is shown without one while it does not wait. */
static void wait_for_one_of_two(struct rank *me)
{
    float x[2] = { 1, 2 };
    tutti_request requests[2] = { TUTTI_REQUEST_INIT, TUTTI_REQUEST_INIT };
    if (me->rank == 1)
        for (int i = 0; i < 2; i++)
            REQUIRE(tutti_recv(&x[i], 1, TUTTI_FLOAT32, 0, (unsigned)i, me->comm, &requests[i]) == TUTTI_OK);
    world_meet(me);
    if (me->rank == 0) {
        free(snapshot_await("\"open\": {\"kind\": \"message\", \"age_s\": null}"));
        world_meet(me);
        free(snapshot_await("\"kind\": \"receive\", \"peer\": 0, \"tag\": 1, \"bytes\": 4, \"age_s\": "));
        REQUIRE(tutti_send(x, 1, TUTTI_FLOAT32, 1, 1, me->comm, NULL) == TUTTI_OK);
        free(snapshot_await("\"open\": {\"kind\": \"message\", \"age_s\": null}"));
        REQUIRE(tutti_send(x, 1, TUTTI_FLOAT32, 1, 0, me->comm, NULL) == TUTTI_OK);
    } else {
        world_meet(me);
        REQUIRE(tutti_wait(&requests[1], 0) == TUTTI_OK);
    }
    world_meet(me);
    if (me->rank == 1) REQUIRE(tutti_wait(&requests[0], 0) == TUTTI_OK);
}
static void test_message_without_a_waiting_thread_has_no_age(void **state)
{
    (void)state;
    world_threads(2, NULL, wait_for_one_of_two, NULL);
}
static void test_waiting_rank_shows_its_receive(void **state)
{
    (void)state;
    world_threads(2, NULL, wait_in_receive, NULL);
}
/* Rank 1, on another host, waits in a collective until rank 0 has seen this. No program tells its place. */
static void wait_on_another_host(struct rank *me)
{
    float x = 1;
    if (me->rank == 0) {
        char *snapshot =
            snapshot_await("\"place\": \"\", \"waits_in\": \"\", \"open\": {\"kind\": \"collective\", \"age_s\": ");
        REQUIRE(strstr(snapshot, "\"elsewhere\": [{\"rank\": 1, \"has_left\": false, \"told_s\": "));
        REQUIRE(strstr(snapshot, "\"calls\": 1, \"call\": \"allreduce(1 x float32, sum, algorithm "));
        free(snapshot);
    }
    REQUIRE(tutti_all_reduce(&x, &x, 1, TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL) == TUTTI_OK);
    if (me->rank == 0) free(snapshot_await("\"calls\": 1, \"call\": \"allreduce(1 x float32, sum, algorithm "));
    world_meet(me);
}
static void test_rank_of_another_host_tells_its_state(void **state)
{
    (void)state;
    world_threads_on("2", 2, NULL, wait_on_another_host, NULL);
}
static void abort_the_group(struct rank *me)
{
    if (me->rank == 0) REQUIRE(tutti_comm_abort(me->comm) == TUTTI_OK);
    world_meet(me);
    REQUIRE(snapshot_has("\"failure\": \"the group was aborted"));
    world_meet(me);
}
static void test_failed_group_shows_its_failure(void **state)
{
    (void)state;
    world_threads(2, NULL, abort_the_group, NULL);
}

/* ---- joining ---- */
static void *join_as_rank_0(void *store)
{
    tutti_config config = TUTTI_CONFIG_INIT;
    tutti_comm *comm = NULL;
    config.size = 2;
    config.name = "choir";
    config.store = *(tutti_store *)store;
    tutti_status status = tutti_comm_init(&comm, &config);
    tutti_comm_destroy(comm);
    return status == TUTTI_OK ? store : NULL;
}
static void test_rank_that_is_joining_is_shown(void **state)
{
    tutti_store store = world_store_create();
    tutti_config config = TUTTI_CONFIG_INIT;
    tutti_comm *comm = NULL;
    pthread_t thread;
    void *joined;
    (void)state;
    pthread_create(&thread, NULL, join_as_rank_0, &store);
    free(snapshot_await("{\"name\": \"choir\", \"state\": \"joining\", \"rank\": 0, \"ranks\": 2, \"exists_s\": "));
    config.rank = 1;
    config.size = 2;
    config.name = "choir";
    config.store = store;
    assert_int_equal(tutti_comm_init(&comm, &config), TUTTI_OK);
    assert_true(snapshot_has("{\"name\": \"choir\", \"state\": \"joined\", \"rank\": 1, \"ranks\": 2, "));
    tutti_comm_destroy(comm);
    pthread_join(thread, &joined);
    assert_ptr_equal(joined, &store);
    world_store_destroy(store);
}

/* ---- the text and the socket ---- */
static void test_text_is_cut_to_the_buffer(void **state)
{
    char whole[ROOM], cut[16];
    size_t bytes, cut_bytes;
    (void)state;
    snapshot_write_process(whole, sizeof whole, &bytes);
    snapshot_write_process(cut, sizeof cut, &cut_bytes);
    assert_int_equal(bytes, cut_bytes);
    assert_int_equal(strlen(cut), sizeof cut - 1);
    assert_memory_equal(cut, whole, sizeof cut - 1);
}
/* Asks this process, as another one does, and returns the text in `out`. */
static void snapshot_receive(const unsigned char nonce[NONCE_BYTES], char *out, size_t room)
{
    uint64_t length;
    int file = -1, got, caller = socket_connect("snapshot", nonce);
    assert_true(caller >= 0);
    while ((got = socket_receive(caller, &length, sizeof length, &file)) == -EAGAIN) sleep_us(100);
    assert_int_equal(got, sizeof length);
    assert_true(file >= 0 && length < room);
    assert_int_equal(pread(file, out, room, 0), length);
    /* The text is sealed. */
    assert_int_equal(pwrite(file, "x", 1, 0), -1);
    out[length] = 0;
    close(file);
    assert_int_equal(socket_receive(caller, &length, sizeof length, NULL), 0);
    close(caller);
}
static void write_long_text(char *buffer, size_t capacity, size_t *bytes)
{
    *bytes = 40000;
    if (!capacity) return;
    size_t length = capacity - 1 < *bytes ? capacity - 1 : *bytes;
    memset(buffer, 'x', length);
    buffer[length] = 0;
}
/* ---- the place of the program ---- */
/* Answers `callers` callers as a program does. */
static void *tell_place(void *callers)
{
    static const char text[] = "train.py:7 (step)\nthread MainThread:\n  more\n";
    for (int i = 0; i < *(int *)callers; i++) {
        int caller = -1;
        REQUIRE(tutti_await_status_caller(&caller) == TUTTI_OK);
        REQUIRE(socket_send(caller, text, sizeof text - 1, -1) == 0);
        close(caller);
    }
    return NULL;
}
/* Asks a process for the place of its program. */
static void ask_place(const struct identity *process, int64_t deadline_ms, char out[PLACE_BYTES])
{
    snapshot_receive_place(snapshot_ask(process->nonce), deadline_ms, out);
}
/* Asks this process `callers` times while a thread of it answers. */
static void ask_telling_program(const struct identity *self, int callers)
{
    char place[PLACE_BYTES];
    pthread_t thread;
    pthread_create(&thread, NULL, tell_place, &callers);
    do ask_place(self, INT64_MAX, place);
    while (!*place);
    for (int i = 1; i < callers; i++) {
        assert_string_equal(place, "train.py:7 (step)");
        ask_place(self, INT64_MAX, place);
    }
    assert_string_equal(place, "train.py:7 (step)");
    pthread_join(thread, NULL);
}
static void test_program_tells_its_place(void **state)
{
    struct identity self;
    char place[PLACE_BYTES];
    (void)state;
    assert_int_equal(tutti_await_status_caller(NULL), TUTTI_INVALID_ARGUMENT);
    assert_int_equal(peers_acquire(&self), TUTTI_OK);
    snapshots_set_writer(snapshot_write_process);
    ask_telling_program(&self, 3);
    /* The thread of the program does not come back. */
    ask_place(&self, clock_ms() + 20, place);
    assert_string_equal(place, "");
    peers_release();
    ask_place(&self, INT64_MAX, place);
    assert_string_equal(place, "");
}
static void test_oldest_of_many_callers_gets_no_place(void **state)
{
    enum { CALLERS = 33 };
    struct identity self;
    uint64_t length;
    int callers[CALLERS], got;
    (void)state;
    assert_int_equal(peers_acquire(&self), TUTTI_OK);
    snapshots_set_writer(snapshot_write_process);
    ask_telling_program(&self, 1);
    for (int i = 0; i < CALLERS; i++) {
        callers[i] = snapshot_ask(self.nonce);
        while ((got = socket_receive(callers[i], &length, sizeof length, NULL)) == -EAGAIN) sleep_us(100);
        assert_int_equal(got, sizeof length);
    }
    while ((got = socket_receive(callers[0], &length, sizeof length, NULL)) == -EAGAIN) sleep_us(100);
    assert_int_equal(got, 0);
    for (int i = 1; i < CALLERS; i++)
        assert_int_equal(socket_receive(callers[i], &length, sizeof length, NULL), -EAGAIN);
    peers_release();
    for (int i = 1; i < CALLERS; i++) assert_int_equal(socket_receive(callers[i], &length, sizeof length, NULL), 0);
    for (int i = 0; i < CALLERS; i++) close(callers[i]);
}
static void test_socket_answers_with_a_snapshot(void **state)
{
    struct identity self;
    char text[ROOM];
    (void)state;
    assert_int_equal(peers_acquire(&self), TUTTI_OK);
    snapshots_set_writer(snapshot_write_process);
    for (int i = 0; i < 3; i++) {
        snapshot_receive(self.nonce, text, sizeof text);
        assert_memory_equal(text, "{\"format\": 2, \"version\": ", 25);
        assert_non_null(strstr(text, "\"groups\": []}"));
    }
    snapshots_set_writer(write_long_text);
    snapshot_receive(self.nonce, text, sizeof text);
    assert_int_equal(strspn(text, "x"), 40000);
    snapshots_set_writer(snapshot_write_process);
    peers_release();
    assert_int_equal(socket_connect("snapshot", self.nonce), -ECONNREFUSED);
}

unit_function test_snapshots;
int test_snapshots(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waiting_rank_shows_its_collective),
        cmocka_unit_test(test_waiting_rank_shows_its_receive),
        cmocka_unit_test(test_message_without_a_waiting_thread_has_no_age),
        cmocka_unit_test(test_rank_of_another_host_tells_its_state),
        cmocka_unit_test(test_failed_group_shows_its_failure),
        cmocka_unit_test(test_rank_that_is_joining_is_shown),
        cmocka_unit_test(test_text_is_cut_to_the_buffer),
        cmocka_unit_test(test_socket_answers_with_a_snapshot),
        cmocka_unit_test(test_program_tells_its_place),
        cmocka_unit_test(test_oldest_of_many_callers_gets_no_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
