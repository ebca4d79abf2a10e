/* The end of a peer is told to all who watch it, whether it died or left, whatever children it has; a child made by
   fork is nobody's peer and starts anew. */
#include "backend/base/clock.h"
#include "backend/base/status.h"
#include "tests/support/unit.h"
#include "tests/unit/processes/peers_world.h"
#include <signal.h>
#include <sys/wait.h>

/* ---- deaths ---- */
static bool victim_has_children;
static void leave_children(void)                                       /* that have inherited everything */
{
    if (!victim_has_children) return;
    pid_t forked = fork();
    if (forked == 0) { sleep_ms(4 * GENEROUS_MS); _exit(0); }
    pid_t executed = fork();
    if (executed == 0) { execlp("sleep", "sleep", "120", (char *)NULL); _exit(1); }
    world->orphans[0] = forked;
    world->orphans[1] = executed;
}
static void lose_one(void)                                             /* the last */
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
    for (int i = 0; rank == 0 && victim_has_children && i < 2; i++)
        REQUIRE(world->orphans[i] > 0 && kill(world->orphans[i], SIGKILL) == 0);       /* they lived on */
    REQUIRE(peer_is_gone(peers[size - 1]));
    REQUIRE(peer_send_descriptor(peers[size - 1], world->identity[0].nonce, STDIN_FILENO) == TUTTI_PEER_LOST);
    world_barrier(size - 1);
    struct loss late = { 0 };                                          /* who begins to watch now is told at once */
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
static void test_death_is_told_to_all(void **state)
{
    (void)state;
    victim_has_children = false;
    world_run(4, lose_one, 1u << 3);
}
static void test_death_is_told_although_children_live_on(void **state)
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
static void test_who_leaves_is_gone(void **state)
{
    (void)state;
    world_run(2, leave_in_order, 0);
}
struct slow { struct peer_watch watch; _Atomic int began, ended; bool unwatch_inside; };
static void take_long(void *context)
{
    struct slow *slow = context;
    atomic_store(&slow->began, 1);
    if (slow->unwatch_inside) peer_unwatch(&slow->watch);
    sleep_ms(100);
    atomic_store(&slow->ended, 1);
}
static void unwatch_while_called(void)
{
    struct peer *peer;
    world_join();
    REQUIRE(world_call(1 - rank, &peer) == TUTTI_OK);
    world_barrier(2);
    if (rank == 1) raise(SIGKILL);
    for (int inside = 0; inside < 2; inside++) {
        struct slow slow = { .unwatch_inside = inside };
        slow.watch = (struct peer_watch){ .peer = peer, .lost = take_long, .context = &slow };
        peer_watch(&slow.watch);
        for (int64_t until = clock_ms() + GENEROUS_MS; !atomic_load(&slow.began); sleep_ms(1))
            REQUIRE(clock_ms() < until);
        peer_unwatch(&slow.watch);
        REQUIRE(atomic_load(&slow.ended));
    }
    peer_release(peer);
    peers_release();
}
static void test_unwatch_waits_for_a_call_that_runs(void **state)
{
    (void)state;
    world_run(2, unwatch_while_called, 1u << 1);
}

/* ---- fork ---- */
static void fork_and_start_anew(void)
{
    struct peer *peers[MOST], *parent;
    struct identity anew;
    struct loss loss = { 0 };
    int before = count_descriptors();
    world_join();
    world_connect_all(peers);
    struct peer_watch watch = { .peer = peers[1 - rank], .lost = loss_record, .context = &loss };
    peer_watch(&watch);
    world_barrier(2);
    REQUIRE(descriptors_settle_at(before + 4));                        /* listener, poller, waker, connection */
    pid_t child = fork();
    if (child == 0) {
        REQUIRE(count_descriptors() == before);
        REQUIRE(count_threads() == 1);
        peers_release();                                               /* of its parent's: nothing happens */
        REQUIRE(peer_is_gone(peers[1 - rank]));
        REQUIRE(world_acquire(&anew) == TUTTI_OK);
        REQUIRE(memcmp(anew.nonce, world->identity[rank].nonce, sizeof anew.nonce) != 0);
        for (int other = 0; other < 2; other++) {
            REQUIRE(world_call(other, &parent) == TUTTI_OK);
            peer_release(parent);
        }
        peers_release();
        _exit(0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    REQUIRE(!peer_is_gone(peers[1 - rank]) && !atomic_load(&loss.count));      /* the parent has noticed nothing */
    world_barrier(2);
    peer_unwatch(&watch);
    world_release_all(peers);
    peers_release();
}
static void test_child_of_fork_starts_anew(void **state)
{
    (void)state;
#if defined(__SANITIZE_THREAD__)
    print_message("the thread sanitizer does not allow threads in a child of a process with threads\n");
    skip();
#endif
    world_run(2, fork_and_start_anew, 0);
}
unit_function test_peer_deaths;
int test_peer_deaths(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_death_is_told_to_all),
        cmocka_unit_test(test_death_is_told_although_children_live_on),
        cmocka_unit_test(test_who_leaves_is_gone),
        cmocka_unit_test(test_unwatch_waits_for_a_call_that_runs),
        cmocka_unit_test(test_child_of_fork_starts_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
