/* All watches of a peer are called when it dies or leaves, even if its children live on. A forked child has no peers,
   and may acquire peers of its own. */
#include "backend/base/clock.h"
#include "backend/base/status.h"
#include "tests/support/unit.h"
#include "tests/unit/processes/peers_world.h"
#include <signal.h>
#include <sys/wait.h>

/* ---- deaths ---- */
static bool victim_has_children;
/* Leaves two children that have inherited all descriptors, one of them after exec. */
static void leave_children(void)
{
    if (!victim_has_children) return;
    pid_t forked = fork();
    if (forked == 0) { sleep_ms(4 * GENEROUS_MS); _exit(0); }
    pid_t executed = fork();
    if (executed == 0) { execlp("sleep", "sleep", "120", (char *)NULL); _exit(1); }
    world->orphans[0] = forked;
    world->orphans[1] = executed;
}
/* The last process dies. */
static void lose_one(void)
{
    struct peer *peers[MOST];
    struct loss losses[MOST] = { 0 };
    struct peer_watch watches[MOST];
    int before = count_descriptors();
    world_join();
    world_connect_all(peers);
    for (int peer = 0; peer < size; peer++) {
        watches[peer] = (struct peer_watch){ .peer = peers[peer], .lost = loss_record, .context = &losses[peer] };
        if (peer != rank) peer_watch(&watches[peer]);
    }
    if (rank == size - 1) leave_children();
    world_barrier(size);
    if (rank == size - 1) raise(SIGKILL);
    loss_await(&losses[size - 1]);
    /* The children of the dead process lived until now. */
    for (int i = 0; rank == 0 && victim_has_children && i < 2; i++)
        REQUIRE(world->orphans[i] > 0 && kill(world->orphans[i], SIGKILL) == 0);
    REQUIRE(peer_is_gone(peers[size - 1]));
    REQUIRE(peer_send_descriptor(peers[size - 1], world->identity[0].nonce, STDIN_FILENO) == TUTTI_PEER_LOST);
    world_barrier(size - 1);
    /* A watch that begins now is called soon. */
    struct loss late = { 0 };
    struct peer_watch watch = { .peer = peers[size - 1], .lost = loss_record, .context = &late };
    peer_watch(&watch);
    loss_await(&late);
    peer_unwatch(&watch);
    for (int peer = 0; peer < size - 1; peer++) REQUIRE(!atomic_load(&losses[peer].count));
    for (int peer = 0; peer < size; peer++)
        if (peer != rank) peer_unwatch(&watches[peer]);
    REQUIRE(atomic_load(&losses[size - 1].count) == 1);
    world_barrier(size - 1);
    world_release_all(peers);
    peers_release();
    REQUIRE(count_descriptors() == before);
}
static void test_death_calls_all_watches(void **state)
{
    (void)state;
    victim_has_children = false;
    world_run(4, lose_one, 1u << 3);
}
static void test_death_calls_watches_although_children_live_on(void **state)
{
    (void)state;
    victim_has_children = true;
    world_run(3, lose_one, 1u << 2);
}
static void leave_in_order(void)
{
    struct peer *peer;
    struct loss loss = { 0 };
    world_join();
    REQUIRE(world_call(1 - rank, &peer) == TUTTI_OK);
    world_barrier(2);
    if (rank == 1) { peer_release(peer); peers_release(); return; }
    struct peer_watch watch = { .peer = peer, .lost = loss_record, .context = &loss };
    peer_watch(&watch);
    loss_await(&loss);
    REQUIRE(peer_is_gone(peer));
    peer_unwatch(&watch);
    peer_release(peer);
    REQUIRE(world_call(1, &peer) == TUTTI_SYSTEM);
    peers_release();
}
static void test_process_that_leaves_is_gone(void **state)
{
    (void)state;
    world_run(2, leave_in_order, 0);
}
struct slow_watch { struct peer_watch watch; _Atomic int began, ended; bool unwatch_inside; };
static void lost_slowly(void *context)
{
    struct slow_watch *slow_watch = context;
    atomic_store(&slow_watch->began, 1);
    if (slow_watch->unwatch_inside) peer_unwatch(&slow_watch->watch);
    sleep_ms(100);
    atomic_store(&slow_watch->ended, 1);
}
static void unwatch_while_called(void)
{
    struct peer *peer;
    world_join();
    REQUIRE(world_call(1 - rank, &peer) == TUTTI_OK);
    world_barrier(2);
    if (rank == 1) raise(SIGKILL);
    for (int inside = 0; inside < 2; inside++) {
        struct slow_watch slow_watch = { .unwatch_inside = inside };
        slow_watch.watch = (struct peer_watch){ .peer = peer, .lost = lost_slowly, .context = &slow_watch };
        peer_watch(&slow_watch.watch);
        for (int64_t until = clock_ms() + GENEROUS_MS; !atomic_load(&slow_watch.began); sleep_ms(1))
            REQUIRE(clock_ms() < until);
        peer_unwatch(&slow_watch.watch);
        REQUIRE(atomic_load(&slow_watch.ended));
    }
    peer_release(peer);
    peers_release();
}
static void test_unwatch_waits_for_a_running_call(void **state)
{
    (void)state;
    world_run(2, unwatch_while_called, 1u << 1);
}

/* ---- fork ---- */
static void acquire_in_a_child(void)
{
    struct peer *peers[MOST], *parent;
    struct identity own;
    struct loss loss = { 0 };
    int before = count_descriptors();
    world_join();
    world_connect_all(peers);
    struct peer_watch watch = { .peer = peers[1 - rank], .lost = loss_record, .context = &loss };
    peer_watch(&watch);
    world_barrier(2);
    REQUIRE(descriptors_settle_at(before + REGISTRY_DESCRIPTORS + 1));
    pid_t child = fork();
    if (child == 0) {
        REQUIRE(count_descriptors() == before);
        REQUIRE(count_threads() == 1);
        /* The child has not acquired any peers, so this call does nothing. */
        peers_release();
        REQUIRE(peer_is_gone(peers[1 - rank]));
        REQUIRE(world_acquire(&own) == TUTTI_OK);
        REQUIRE(memcmp(own.nonce, world->identity[rank].nonce, sizeof own.nonce) != 0);
        for (int other = 0; other < 2; other++) {
            REQUIRE(world_call(other, &parent) == TUTTI_OK);
            peer_release(parent);
        }
        peers_release();
        _exit(0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    /* The child has changed nothing for the parent. */
    REQUIRE(!peer_is_gone(peers[1 - rank]) && !atomic_load(&loss.count));
    world_barrier(2);
    peer_unwatch(&watch);
    world_release_all(peers);
    peers_release();
}
static void test_forked_child_has_peers_of_its_own(void **state)
{
    (void)state;
#if defined(__SANITIZE_THREAD__)
    print_message("the thread sanitizer does not allow threads in a child of a process with threads\n");
    skip();
#endif
    world_run(2, acquire_in_a_child, 0);
}
unit_function test_peer_deaths;
int test_peer_deaths(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_death_calls_all_watches),
        cmocka_unit_test(test_death_calls_watches_although_children_live_on),
        cmocka_unit_test(test_process_that_leaves_is_gone),
        cmocka_unit_test(test_unwatch_waits_for_a_running_call),
        cmocka_unit_test(test_forked_child_has_peers_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
