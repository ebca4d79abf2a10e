/* Views of peers' blocks: mapped when asked for, once, shared; unmapped when given back, or with the peer; and what
   cannot be mapped is an error with words, which may be tried again. */
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
static struct calibration_record { struct location place[2]; } *told;   /* rank 1 tells where its tensors are */
static int views_mapped(void)                           /* memfds of ours in this process, its own blocks excluded */
{
    int count = 0;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) count += strstr(line, "memfd:tutti") != NULL;
    fclose(maps);
    return count - arena_extent().blocks;
}
/* Asks until there is an answer. */
static tutti_status acquire(struct peer *peer, uint64_t block, struct view **held)
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
static struct rlimit limit_descriptors(rlim_t most)    /* returns what was the limit before */
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
        REQUIRE(arena_find(out[i], BYTES, &told->place[i]));
    }
}

/* ---- rank 0 looks at what rank 1 has ---- */
static void a_view_is_shared_and_goes(void)
{
    struct peer *peer = NULL;
    struct view *view[2] = { NULL, NULL }, *again = NULL;
    void *mine[2] = { NULL, NULL };
    world_join();
    REQUIRE(world_call(1 - rank, &peer) == TUTTI_OK);
    if (rank == 1) allocate(2, mine);
    world_barrier(2);
    for (int i = 0; rank == 0 && i < 2; i++) {
        struct location p = told->place[i];
        REQUIRE(acquire(peer, p.block, &view[i]) == TUTTI_OK);
        REQUIRE(!strcmp((char *)view_address_at(view[i], p.offset, BYTES), i ? "second" : "first"));
        REQUIRE(!view_address_at(view[i], p.offset, 2 * (uint64_t)BYTES) && !view_address_at(view[i], UINT64_MAX, 1));
        memcpy(view_address_at(view[i], p.offset, 8), "written", 8);
    }
    if (rank == 0) {
        int mapped = views_mapped();
        REQUIRE(view_acquire(peer, told->place[0].block, &again) == TUTTI_OK && again == view[0]);
        REQUIRE(views_mapped() == mapped && mapped == 2);
        view_release(again);
    }
    world_barrier(2);
    for (int i = 0; rank == 1 && i < 2; i++) {
        REQUIRE(!strcmp(mine[i], "written"));
        REQUIRE(arena_free(mine[i]) == TUTTI_OK);       /* one of the two blocks is given back */
    }
    world_barrier(2);
    if (rank == 0) {
        REQUIRE(views_mapped() == 2);                   /* not while they are held */
        for (int i = 0; i < 2; i++) view_release(view[i]);
        REQUIRE(views_mapped() == 1);
    }
    peer_release(peer);
    peers_release();
    REQUIRE(views_mapped() == 0);
}
static void errors_have_words_and_may_be_tried_again(void)
{
    struct peer *peer = NULL;
    struct view *view = NULL;
    void *mine[1];
    world_join();
    REQUIRE(world_call(1 - rank, &peer) == TUTTI_OK);
    if (rank == 1) allocate(1, mine);
    world_barrier(2);
    for (int i = 0; rank == 0 && i < 2; i++) {
        REQUIRE(acquire(peer, 12345, &view) == TUTTI_INVALID_ARGUMENT);
        REQUIRE(strstr(status_detail(), "shared tensor was freed while an operation used it"));
    }
    if (rank == 0) {
        int files = count_descriptors();
        struct rlimit before = limit_descriptors(3);
        REQUIRE(acquire(peer, told->place[0].block, &view) == TUTTI_SYSTEM);
        REQUIRE(strstr(status_detail(), "too many open files, there or here? see ulimit -n"));
        setrlimit(RLIMIT_NOFILE, &before);
        REQUIRE(!view && acquire(peer, told->place[0].block, &view) == TUTTI_OK);
        REQUIRE(count_descriptors() == files);          /* a mapping needs none */
        view_release(view);
    }
    world_barrier(2);
    peer_release(peer);
    peers_release();
}
static void a_dead_peer_leaves_nothing(void)
{
    struct peer *peer = NULL;
    struct view *view = NULL, *late = NULL;
    void *mine[2];
    world_join();
    REQUIRE(world_call(1 - rank, &peer) == TUTTI_OK);
    if (rank == 1) allocate(2, mine);
    world_barrier(2);
    if (rank == 0) REQUIRE(acquire(peer, told->place[0].block, &view) == TUTTI_OK);
    world_barrier(2);
    if (rank == 1) raise(SIGKILL);
    for (int64_t until = clock_ms() + GENEROUS_MS; !peer_is_gone(peer); sleep_ms(1)) REQUIRE(clock_ms() < until);
    REQUIRE(!strcmp((char *)view_address_at(view, told->place[0].offset, 8), "first")); /* as long as it is held */
    REQUIRE(view_acquire(peer, told->place[1].block, &late) == TUTTI_IN_PROGRESS);     /* the watch tells why */
    view_release(late);
    view_release(view);
    peer_release(peer);
    REQUIRE(views_mapped() == 0);
    peers_release();
}
/* A shortage fails those who waited while it lasted. Whoever comes later, when it is over, is not told of it. */
static void a_refusal_is_for_those_who_waited(void)
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
        REQUIRE(view_acquire(peer, told->place[0].block, &waited) == TUTTI_IN_PROGRESS && waited);
        for (int64_t until = clock_ms() + JOIN_MS; atomic_load(answer.item[0].word) == answer.item[0].seen; sleep_ms(1))
            REQUIRE(clock_ms() < until);
        setrlimit(RLIMIT_NOFILE, &before);
        REQUIRE(acquire(peer, told->place[0].block, &later) == TUTTI_OK);
        REQUIRE(view_acquire(peer, told->place[0].block, &waited) == TUTTI_SYSTEM && !waited);
        REQUIRE(strstr(status_detail(), "too many open files"));
        view_release(later);
    }
    world_barrier(2);
    peer_release(peer);
    peers_release();
}
static void hear(struct peer *peer, uint64_t number)    /* an answer without a descriptor */
{
    uint64_t token[2] = { number, BYTES };
    pthread_mutex_lock(&registry.lock);
    views_receive_block(peer, (const unsigned char *)token, -1);
    pthread_mutex_unlock(&registry.lock);
}
/* What was given up may still be refused, after it has been asked for again. */
static void a_refusal_on_its_way_is_for_nobody(void)
{
    struct peer *peer = NULL;
    struct view *view = NULL;
    world_join();
    REQUIRE(world_call(1 - rank, &peer) == TUTTI_OK);
    if (rank == 1) pthread_mutex_lock(&registry.lock);  /* it answers nothing itself */
    world_barrier(2);
    if (rank == 0) {
        REQUIRE(view_acquire(peer, 12345, &view) == TUTTI_IN_PROGRESS);
        view_release(view);
        view = NULL;
        REQUIRE(view_acquire(peer, 12345, &view) == TUTTI_IN_PROGRESS);
        hear(peer, 1);
        REQUIRE(view_acquire(peer, 12345, &view) == TUTTI_IN_PROGRESS);
        hear(peer, 2);
        REQUIRE(view_acquire(peer, 12345, &view) == TUTTI_SYSTEM && !view);
    }
    world_barrier(2);
    if (rank == 1) pthread_mutex_unlock(&registry.lock);
    peer_release(peer);
    peers_release();
}

static void test_a_view_is_shared_and_goes(void **state) { (void)state; world_run(2, a_view_is_shared_and_goes, 0); }
static void test_errors(void **state) { (void)state; world_run(2, errors_have_words_and_may_be_tried_again, 0); }
static void test_a_refusal_is_for_those_who_waited(void **state)
{
    (void)state;
    world_run(2, a_refusal_is_for_those_who_waited, 0);
}
static void test_a_refusal_on_its_way_is_for_nobody(void **state)
{
    (void)state;
    world_run(2, a_refusal_on_its_way_is_for_nobody, 0);
}
static void test_a_dead_peer_leaves_nothing(void **state)
{
    (void)state;
    world_run(2, a_dead_peer_leaves_nothing, 2);
}
unit_function test_views;
int test_views(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_view_is_shared_and_goes),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_a_refusal_is_for_those_who_waited),
        cmocka_unit_test(test_a_refusal_on_its_way_is_for_nobody),
        cmocka_unit_test(test_a_dead_peer_leaves_nothing),
    };
    told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
