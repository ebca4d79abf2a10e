/* A view of a peer's block is mapped once, on the first request, and shared by its users. It is unmapped after the peer
   has freed the block, or with the peer. A block that cannot be mapped is an error with a text, and may be requested
   again. */
#include "backend/base/clock.h"
#include "backend/base/status.h"
#include "backend/host/wait.h"
#include "backend/memory/arena.h"
#include "backend/processes/registry.h"
#include "backend/processes/views.h"
#include "tests/support/unit.h"
#include "tests/unit/processes/peers_world.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { BYTES = 20 << 20 };
/* Rank 1 writes the locations of its tensors here, in shared memory. */
static struct locations { struct location place[2]; } *tensors;
/* Returns the number of blocks of peers that are mapped in this process. */
static int views_mapped(void)
{
    int count = 0;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) count += strstr(line, "memfd:tutti") != NULL;
    fclose(maps);
    return count - arena_get_size().blocks;
}
/* Requests the view until it is available or has failed. */
static tutti_status view_await(struct peer *peer, uint64_t block, struct view **held)
{
    tutti_status status;
    for (int64_t until = clock_ms() + JOIN_MS;;) {
        struct wait_set set = { .count = 0 };
        views_add_to_wait(&set);
        status = view_acquire(peer, block, held);
        if (status != TUTTI_IN_PROGRESS) return status;
        REQUIRE(clock_ms() < until);
        wait_set_sleep(&set, 20);
    }
}
/* Sets the limit of descriptors, and returns the limit before. */
static struct rlimit limit_descriptors(rlim_t most)
{
    struct rlimit before, now;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    now = (struct rlimit){ most, before.rlim_max };
    REQUIRE(setrlimit(RLIMIT_NOFILE, &now) == 0);
    return before;
}
static void allocate(int count, void **out)
{
    for (int i = 0; i < count; i++) {
        REQUIRE(arena_allocate(BYTES, &out[i]) == TUTTI_OK);
        strcpy(out[i], i ? "second" : "first");
        REQUIRE(arena_find(out[i], BYTES, &tensors->place[i]));
    }
}

/* ---- rank 0 acquires views of rank 1's blocks ---- */
static void share_and_unmap_views(void)
{
    struct peer *peer = NULL;
    struct view *view[2] = { NULL, NULL }, *again = NULL;
    void *mine[2] = { NULL, NULL };
    world_join();
    REQUIRE(world_call(1 - rank, &peer) == TUTTI_OK);
    if (rank == 1) allocate(2, mine);
    world_barrier(2);
    for (int i = 0; rank == 0 && i < 2; i++) {
        struct location p = tensors->place[i];
        REQUIRE(view_await(peer, p.block, &view[i]) == TUTTI_OK);
        REQUIRE(!strcmp((char *)view_address_at(view[i], p.offset, BYTES), i ? "second" : "first"));
        REQUIRE(!view_address_at(view[i], p.offset, 2 * (uint64_t)BYTES) && !view_address_at(view[i], UINT64_MAX, 1));
        memcpy(view_address_at(view[i], p.offset, 8), "written", 8);
    }
    if (rank == 0) {
        int mapped = views_mapped();
        REQUIRE(view_acquire(peer, tensors->place[0].block, &again) == TUTTI_OK && again == view[0]);
        REQUIRE(views_mapped() == mapped && mapped == 2);
        view_release(again);
    }
    world_barrier(2);
    for (int i = 0; rank == 1 && i < 2; i++) {
        REQUIRE(!strcmp(mine[i], "written"));
        /* The arena frees one of the two blocks and keeps the other as its spare. */
        REQUIRE(arena_free(mine[i]) == TUTTI_OK);
    }
    world_barrier(2);
    if (rank == 0) {
        /* Views that are in use stay mapped. */
        REQUIRE(views_mapped() == 2);
        for (int i = 0; i < 2; i++) view_release(view[i]);
        REQUIRE(views_mapped() == 1);
    }
    peer_release(peer);
    peers_release();
    REQUIRE(views_mapped() == 0);
}
static void fail_and_request_again(void)
{
    struct peer *peer = NULL;
    struct view *view = NULL;
    void *mine[1];
    world_join();
    REQUIRE(world_call(1 - rank, &peer) == TUTTI_OK);
    if (rank == 1) allocate(1, mine);
    world_barrier(2);
    for (int i = 0; rank == 0 && i < 2; i++) {
        REQUIRE(view_await(peer, 12345, &view) == TUTTI_INVALID_ARGUMENT);
        REQUIRE(strstr(status_detail(), "shared tensor was freed while an operation used it"));
    }
    if (rank == 0) {
        int files = count_descriptors();
        struct rlimit before = limit_descriptors(3);
        REQUIRE(view_await(peer, tensors->place[0].block, &view) == TUTTI_SYSTEM);
        REQUIRE(strstr(status_detail(), "too many open files, there or here? see ulimit -n"));
        setrlimit(RLIMIT_NOFILE, &before);
        REQUIRE(!view && view_await(peer, tensors->place[0].block, &view) == TUTTI_OK);
        /* A view keeps no descriptor open. */
        REQUIRE(count_descriptors() == files);
        view_release(view);
    }
    world_barrier(2);
    peer_release(peer);
    peers_release();
}
static void view_blocks_of_a_dead_peer(void)
{
    struct peer *peer = NULL;
    struct view *view = NULL, *late = NULL;
    void *mine[2];
    world_join();
    REQUIRE(world_call(1 - rank, &peer) == TUTTI_OK);
    if (rank == 1) allocate(2, mine);
    world_barrier(2);
    if (rank == 0) REQUIRE(view_await(peer, tensors->place[0].block, &view) == TUTTI_OK);
    world_barrier(2);
    if (rank == 1) raise(SIGKILL);
    for (int64_t until = clock_ms() + GENEROUS_MS; !peer_is_gone(peer); sleep_ms(1)) REQUIRE(clock_ms() < until);
    /* A view that is in use stays readable. */
    REQUIRE(!strcmp((char *)view_address_at(view, tensors->place[0].offset, 8), "first"));
    /* A new request does not fail, because the watch of the peer reports the death. */
    REQUIRE(view_acquire(peer, tensors->place[1].block, &late) == TUTTI_IN_PROGRESS);
    view_release(late);
    view_release(view);
    peer_release(peer);
    REQUIRE(views_mapped() == 0);
    peers_release();
}
/* A shortage of descriptors fails the requests that waited during it, and no later request. */
static void request_during_and_after_a_shortage(void)
{
    struct peer *peer = NULL;
    struct view *waited = NULL, *later = NULL;
    struct wait_set answer = { .count = 0 };
    void *mine[1];
    world_join();
    REQUIRE(world_call(1 - rank, &peer) == TUTTI_OK);
    if (rank == 1) allocate(1, mine);
    world_barrier(2);
    if (rank == 0) {
        struct rlimit before = limit_descriptors(3);
        views_add_to_wait(&answer);
        REQUIRE(view_acquire(peer, tensors->place[0].block, &waited) == TUTTI_IN_PROGRESS && waited);
        for (int64_t until = clock_ms() + JOIN_MS; atomic_load(answer.item[0].word) == answer.item[0].seen; sleep_ms(1))
            REQUIRE(clock_ms() < until);
        setrlimit(RLIMIT_NOFILE, &before);
        REQUIRE(view_await(peer, tensors->place[0].block, &later) == TUTTI_OK);
        REQUIRE(view_acquire(peer, tensors->place[0].block, &waited) == TUTTI_SYSTEM && !waited);
        REQUIRE(strstr(status_detail(), "too many open files"));
        view_release(later);
    }
    world_barrier(2);
    peer_release(peer);
    peers_release();
}
/* Delivers an answer without a descriptor, which refuses request `number`. */
static void refusal_receive(struct peer *peer, uint64_t number)
{
    uint64_t token[2] = { number, BYTES };
    pthread_mutex_lock(&registry.lock);
    views_receive_block(peer, (const unsigned char *)token, -1);
    pthread_mutex_unlock(&registry.lock);
}
/* A request is cancelled and made again. The refusal of the first arrives afterwards, and does not fail the second. */
static void request_again_before_the_refusal(void)
{
    struct peer *peer = NULL;
    struct view *view = NULL;
    world_join();
    REQUIRE(world_call(1 - rank, &peer) == TUTTI_OK);
    /* Rank 1 answers no request itself. */
    if (rank == 1) pthread_mutex_lock(&registry.lock);
    world_barrier(2);
    if (rank == 0) {
        REQUIRE(view_acquire(peer, 12345, &view) == TUTTI_IN_PROGRESS);
        view_release(view);
        view = NULL;
        REQUIRE(view_acquire(peer, 12345, &view) == TUTTI_IN_PROGRESS);
        refusal_receive(peer, 1);
        REQUIRE(view_acquire(peer, 12345, &view) == TUTTI_IN_PROGRESS);
        refusal_receive(peer, 2);
        REQUIRE(view_acquire(peer, 12345, &view) == TUTTI_SYSTEM && !view);
    }
    world_barrier(2);
    if (rank == 1) pthread_mutex_unlock(&registry.lock);
    peer_release(peer);
    peers_release();
}

static void test_view_is_shared_and_unmapped_after_use(void **state)
{
    (void)state;
    world_run(2, share_and_unmap_views, 0);
}
static void test_failed_view_has_a_text_and_may_be_requested_again(void **state)
{
    (void)state;
    world_run(2, fail_and_request_again, 0);
}
static void test_shortage_fails_only_the_requests_during_it(void **state)
{
    (void)state;
    world_run(2, request_during_and_after_a_shortage, 0);
}
static void test_late_refusal_does_not_fail_a_new_request(void **state)
{
    (void)state;
    world_run(2, request_again_before_the_refusal, 0);
}
static void test_views_of_a_dead_peer_are_unmapped(void **state)
{
    (void)state;
    world_run(2, view_blocks_of_a_dead_peer, 2);
}
unit_function test_views;
int test_views(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_view_is_shared_and_unmapped_after_use),
        cmocka_unit_test(test_failed_view_has_a_text_and_may_be_requested_again),
        cmocka_unit_test(test_shortage_fails_only_the_requests_during_it),
        cmocka_unit_test(test_late_refusal_does_not_fail_a_new_request),
        cmocka_unit_test(test_views_of_a_dead_peer_are_unmapped),
    };
    tensors = mmap(NULL, sizeof *tensors, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
