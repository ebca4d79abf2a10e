/* Peers: processes of one host find each other, one connection per pair whoever calls first; they hand over
   descriptors; a death is told to all who watch; strangers get nothing; nothing is left open. Every process here is
   forked from a parent that has no peers of its own, and reports by its exit code. */
#include "backend/peers.h"
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/host/socket.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 8, GENEROUS_MS = 5000, JOIN_MS = 20000, SKIPPED = 77 };
struct world {                                                         /* shared by the processes of a test */
    struct identity identity[MOST];
    _Atomic int arrived[256], skip;
    pid_t orphans[2];
};
static struct world *world;
static int size, rank, next_barrier;
#define REQUIRE(condition) require((condition), #condition, __LINE__)

static void require(bool condition, const char *text, int line)
{
    if (condition) return;
    fprintf(stderr, "process %d of %d, line %d: %s\nlast error: %s\n", rank, size, line, text, status_detail());
    _exit(1);
}
static void nap(int ms) { nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000 }, NULL); }
static void barrier(int count)
{
    int mine = next_barrier++;
    atomic_fetch_add(&world->arrived[mine], 1);
    for (int64_t until = clock_ms() + JOIN_MS; atomic_load(&world->arrived[mine]) < count; nap(1))
        REQUIRE(clock_ms() < until);
}
static int count_entries(const char *path)
{
    int count = -2;                                                    /* . and .. */
    DIR *folder = opendir(path);
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}
static int count_descriptors(void) { return count_entries("/proc/self/fd") - 1; }
static int count_threads(void)
{
#if defined(__SANITIZE_THREAD__)
    return 1;                                                          /* the sanitizer starts one when it likes */
#endif
    return count_entries("/proc/self/task");
}
/* What another thread or process is about to close is given time. */
static bool descriptors_settle_at(int expected)
{
    for (int64_t until = clock_ms() + GENEROUS_MS; count_descriptors() != expected && clock_ms() < until;) nap(1);
    return count_descriptors() == expected;
}
static bool threads_settle_at(int expected)
{
    for (int64_t until = clock_ms() + GENEROUS_MS; count_threads() != expected && clock_ms() < until;) nap(1);
    return count_threads() == expected;
}
/* Runs `body` in so many processes. True: all have exited with 0 but those killed on purpose (`victims` bits). */
static void run(int count, void (*body)(void), unsigned victims)
{
    pid_t children[MOST];
    world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(world != MAP_FAILED);
    size = count;
    next_barrier = 0;
    fflush(NULL);
    for (rank = 0; rank < count; rank++)
        if ((children[rank] = fork()) == 0) {
            alarm(60);
            body();
            _exit(0);
        }
    bool skipped = false;
    for (int i = 0; i < count; i++) {
        int status = 0;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED) skipped = true;
        else if (victims >> i & 1) assert_int_equal(status, SIGKILL);
        else assert_int_equal(status, 0);
    }
    munmap(world, sizeof *world);
    if (skipped) skip();
}
static void join(void)                                 /* everybody knows everybody, nobody is connected */
{
    REQUIRE(peers_acquire(&world->identity[rank]) == TUTTI_OK);
    barrier(size);
}
static tutti_status call(int peer, struct peer **out)
{
    return peer_connect(&world->identity[peer], clock_ms() + JOIN_MS, out);
}
static void connect_all(struct peer *peers[])
{
    for (int hop = 1; hop < size; hop++) {
        int peer = (rank + hop) % size;
        REQUIRE(call(peer, &peers[peer]) == TUTTI_OK);
    }
}
static void release_all(struct peer *peers[])
{
    for (int peer = 0; peer < size; peer++)
        if (peer != rank) peer_release(peers[peer]);
}

/* ---- finding each other ---- */
static void meet_at_once(void)
{
    struct peer *peers[MOST], *again;
    int before = count_descriptors();
    for (int round = 0; round < 20; round++) {
        join();
        connect_all(peers);
        barrier(size);
        REQUIRE(descriptors_settle_at(before + 3 + size - 1));         /* one connection each, whoever called */
        barrier(size);
        for (int peer = 0; peer < size; peer++) {
            if (peer == rank) continue;
            REQUIRE(call(peer, &again) == TUTTI_OK && again == peers[peer]);
            REQUIRE(!peer_is_gone(again));
            peer_release(again);
        }
        release_all(peers);
        barrier(size);
        peers_release();
        REQUIRE(count_descriptors() == before);
        REQUIRE(threads_settle_at(1));
        barrier(size);
    }
}
static void test_two_meet_at_once(void **state)
{
    (void)state;
    run(2, meet_at_once, 0);
}
static void test_four_meet_at_once(void **state)
{
    (void)state;
    run(4, meet_at_once, 0);
}
static void call_alone(void)                                           /* the other side never calls */
{
    struct peer *peer;
    join();
    if (rank == 0) {
        REQUIRE(call(1, &peer) == TUTTI_OK);
        peer_release(peer);
    }
    barrier(2);
    peers_release();
}
static void test_one_side_calls(void **state)
{
    (void)state;
    run(2, call_alone, 0);
}
static void *call_from_thread(void *context)
{
    REQUIRE(call(1 - rank, context) == TUTTI_OK);
    return NULL;
}
static void call_from_threads(void)                                    /* as for several groups at a time */
{
    struct peer *found[4];
    pthread_t threads[4];
    int before = count_descriptors();
    for (int round = 0; round < 10; round++) {
        join();
        for (int i = 0; i < 4; i++) REQUIRE(pthread_create(&threads[i], NULL, call_from_thread, &found[i]) == 0);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
        REQUIRE(found[0] == found[1] && found[1] == found[2] && found[2] == found[3]);
        barrier(size);
        REQUIRE(descriptors_settle_at(before + 4));
        barrier(size);
        for (int i = 0; i < 4; i++) peer_release(found[i]);
        barrier(size);
        peers_release();
        barrier(size);
    }
}
static void test_threads_share_a_connection(void **state)
{
    (void)state;
    run(2, call_from_threads, 0);
}

/* ---- who is not there ---- */
static void call_wrong(void)
{
    struct identity mine, other = { .pid = 4711, .host = "elsewhere" };
    struct peer *peer = NULL;
    REQUIRE(peers_acquire(&mine) == TUTTI_OK);
    REQUIRE(random_fill(other.nonce, sizeof other.nonce) == TUTTI_OK);
    REQUIRE(peer_connect(&other, clock_ms() + JOIN_MS, &peer) == TUTTI_SYSTEM && !peer);
    REQUIRE(strstr(status_detail(), "process 4711 on elsewhere") && strstr(status_detail(), "another host"));
    REQUIRE(peer_connect(&mine, clock_ms() + JOIN_MS, &peer) == TUTTI_INTERNAL && !peer);
    memory_fail_after(1);
    REQUIRE(peer_connect(&other, clock_ms() + JOIN_MS, &peer) == TUTTI_NO_MEMORY && !peer);
    peers_release();
}
static void test_nobody_there_and_oneself_are_errors(void **state)
{
    (void)state;
    run(1, call_wrong, 0);
}
static void call_stopped(void)
{
    struct peer *peer;
    join();
    if (rank == 1) raise(SIGSTOP);
    if (rank == 0) {
        nap(100);
        REQUIRE(peer_connect(&world->identity[1], clock_ms() + 200, &peer) == TUTTI_TIMEOUT);
        REQUIRE(strstr(status_detail(), "stopped or too busy"));
        kill((pid_t)world->identity[1].pid, SIGCONT);
        REQUIRE(call(1, &peer) == TUTTI_OK);   /* it is alive after all */
        peer_release(peer);
    }
    barrier(2);
    peers_release();
}
static void test_stopped_process_is_not_taken_for_dead(void **state)
{
    (void)state;
    run(2, call_stopped, 0);
}
static void call_other_network(void)
{
    struct peer *peer;
    if (rank == 1 && unshare(CLONE_NEWNET) != 0) {
        peers_acquire(&world->identity[1]);
        atomic_store(&world->skip, 1);
    }
    join();
    if (atomic_load(&world->skip)) _exit(SKIPPED);
    REQUIRE(call(1 - rank, &peer) == TUTTI_SYSTEM);
    REQUIRE(strstr(status_detail(), "network namespace"));
    peers_release();
}
static void test_other_network_namespace_is_another_host(void **state)
{
    (void)state;
    run(2, call_other_network, 0);
}

/* ---- descriptors ---- */
static void make_token(unsigned char out[16], int from, int to, int number)
{
    memset(out, 0, 16);
    out[0] = (unsigned char)from;
    out[1] = (unsigned char)to;
    out[2] = (unsigned char)number;
}
static void exchange(void)
{
    struct peer *peers[MOST];
    unsigned char token[16], found[16];
    int before = count_descriptors();
    join();
    connect_all(peers);
    for (int number = 0; number < 5; number++)
        for (int peer = 0; peer < size; peer++) {
            if (peer == rank) continue;
            int memory = memfd_create("test", MFD_CLOEXEC);
            make_token(token, rank, peer, number);
            REQUIRE(write(memory, token, sizeof token) == sizeof token);
            REQUIRE(peer_send_descriptor(peers[peer], token, memory) == TUTTI_OK);
            close(memory);
        }
    for (int number = 4; number >= 0; number--)                        /* not in the order in which they came */
        for (int peer = 0; peer < size; peer++) {
            int memory = -1;
            if (peer == rank) continue;
            make_token(token, peer, rank, number);
            REQUIRE(peers_await_descriptor(token, clock_ms() + JOIN_MS, &memory) == TUTTI_OK);
            REQUIRE(pread(memory, found, sizeof found, 0) == sizeof found && memcmp(found, token, sizeof found) == 0);
            close(memory);
        }
    int none = -5;
    make_token(token, 9, 9, 9);
    REQUIRE(peers_await_descriptor(token, clock_ms() + 20, &none) == TUTTI_TIMEOUT && none == -5);
    release_all(peers);
    barrier(size);
    peers_release();
    REQUIRE(count_descriptors() == before);
}
static void test_four_exchange_descriptors(void **state)
{
    (void)state;
    run(4, exchange, 0);
}
static void send_too_many(void)                                        /* that nobody asks for */
{
    struct peer *peer;
    unsigned char token[16];
    int before = count_descriptors();
    join();
    REQUIRE(call(1 - rank, &peer) == TUTTI_OK);
    for (int number = 0; number < 200 && rank == 0; number++) {
        make_token(token, 0, 1, number);
        REQUIRE(peer_send_descriptor(peer, token, STDIN_FILENO) == TUTTI_OK);
    }
    make_token(token, 0, 1, 199);
    int last;
    REQUIRE(rank == 0 || peers_await_descriptor(token, clock_ms() + JOIN_MS, &last) == TUTTI_OK);
    if (rank == 1) close(last);
    REQUIRE(descriptors_settle_at(before + 4 + (rank == 1 ? 64 - 1 : 0)));    /* one was taken */
    peer_release(peer);
    barrier(2);
    peers_release();
    REQUIRE(count_descriptors() == before);
}
static void test_unwanted_descriptors_are_bounded(void **state)
{
    (void)state;
    run(2, send_too_many, 0);
}

/* ---- deaths ---- */
struct loss { _Atomic int count; pthread_t thread; };
static void note_loss(void *context)
{
    struct loss *loss = context;
    loss->thread = pthread_self();
    atomic_fetch_add(&loss->count, 1);
}
static void await_loss(struct loss *loss)
{
    for (int64_t until = clock_ms() + GENEROUS_MS; !atomic_load(&loss->count); nap(1)) REQUIRE(clock_ms() < until);
    REQUIRE(!pthread_equal(loss->thread, pthread_self()));
}
static bool victim_has_children;
static void leave_children(void)                                       /* that have inherited everything */
{
    if (!victim_has_children) return;
    pid_t forked = fork();
    if (forked == 0) { nap(4 * GENEROUS_MS); _exit(0); }
    pid_t executed = fork();
    if (executed == 0) { execlp("sleep", "sleep", "20", (char *)NULL); _exit(1); }
    world->orphans[0] = forked;
    world->orphans[1] = executed;
}
static void lose_one(void)                                             /* the last */
{
    struct peer *peers[MOST];
    struct loss losses[MOST] = { 0 };
    struct peer_watch watches[MOST];
    int before = count_descriptors();
    join();
    connect_all(peers);
    for (int peer = 0; peer < size; peer++) {
        watches[peer] = (struct peer_watch){ .peer = peers[peer], .lost = note_loss, .context = &losses[peer] };
        if (peer != rank) peer_watch(&watches[peer]);
    }
    if (rank == size - 1) leave_children();
    barrier(size);
    if (rank == size - 1) raise(SIGKILL);
    await_loss(&losses[size - 1]);
    for (int i = 0; rank == 0 && victim_has_children && i < 2; i++)
        REQUIRE(world->orphans[i] > 0 && kill(world->orphans[i], SIGKILL) == 0);       /* they were there all the time */
    REQUIRE(peer_is_gone(peers[size - 1]));
    REQUIRE(peer_send_descriptor(peers[size - 1], world->identity[0].nonce, STDIN_FILENO) == TUTTI_PEER_LOST);
    barrier(size - 1);
    struct loss late = { 0 };                                          /* who begins to watch now is told at once */
    struct peer_watch watch = { .peer = peers[size - 1], .lost = note_loss, .context = &late };
    peer_watch(&watch);
    await_loss(&late);
    peer_unwatch(&watch);
    for (int peer = 0; peer < size - 1; peer++) REQUIRE(!atomic_load(&losses[peer].count));
    for (int peer = 0; peer < size; peer++)
        if (peer != rank) peer_unwatch(&watches[peer]);
    REQUIRE(atomic_load(&losses[size - 1].count) == 1);
    barrier(size - 1);
    release_all(peers);
    peers_release();
    REQUIRE(count_descriptors() == before);
}
static void test_death_is_told_to_all(void **state)
{
    (void)state;
    victim_has_children = false;
    run(4, lose_one, 1u << 3);
}
static void test_death_is_told_although_children_live_on(void **state)
{
    (void)state;
    victim_has_children = true;
    run(3, lose_one, 1u << 2);
}
static void leave_in_order(void)
{
    struct peer *peer;
    struct loss loss = { 0 };
    join();
    REQUIRE(call(1 - rank, &peer) == TUTTI_OK);
    barrier(2);
    if (rank == 1) { peer_release(peer); peers_release(); return; }
    struct peer_watch watch = { .peer = peer, .lost = note_loss, .context = &loss };
    peer_watch(&watch);
    await_loss(&loss);
    REQUIRE(peer_is_gone(peer));
    peer_unwatch(&watch);
    peer_release(peer);
    REQUIRE(call(1, &peer) == TUTTI_SYSTEM);
    peers_release();
}
static void test_who_leaves_is_gone(void **state)
{
    (void)state;
    run(2, leave_in_order, 0);
}
struct slow { struct peer_watch watch; _Atomic int began, ended; bool unwatch_inside; };
static void take_long(void *context)
{
    struct slow *slow = context;
    atomic_store(&slow->began, 1);
    if (slow->unwatch_inside) peer_unwatch(&slow->watch);
    nap(100);
    atomic_store(&slow->ended, 1);
}
static void unwatch_while_called(void)
{
    struct peer *peer;
    join();
    REQUIRE(call(1 - rank, &peer) == TUTTI_OK);
    barrier(2);
    if (rank == 1) raise(SIGKILL);
    for (int inside = 0; inside < 2; inside++) {
        struct slow slow = { .unwatch_inside = inside };
        slow.watch = (struct peer_watch){ .peer = peer, .lost = take_long, .context = &slow };
        peer_watch(&slow.watch);
        for (int64_t until = clock_ms() + GENEROUS_MS; !atomic_load(&slow.began); nap(1)) REQUIRE(clock_ms() < until);
        peer_unwatch(&slow.watch);
        REQUIRE(atomic_load(&slow.ended));
    }
    peer_release(peer);
    peers_release();
}
static void test_unwatch_waits_for_a_call_that_runs(void **state)
{
    (void)state;
    run(2, unwatch_while_called, 1u << 1);
}

/* ---- strangers ---- */
static void say_nonsense(void)                                         /* the last process is no rank */
{
    struct peer *peers[MOST];
    char nonsense[300];
    int kept[100];
    bool stranger = rank == size - 1;
    if (!stranger) REQUIRE(peers_acquire(&world->identity[rank]) == TUTTI_OK);
    barrier(size);
    memset(nonsense, 'x', sizeof nonsense);
    for (int i = 0; i < 100 && stranger; i++) {
        kept[i] = socket_connect("peer", world->identity[i % 2].nonce);
        if (kept[i] < 0) continue;
        if (i % 4 == 0) socket_send(kept[i], "GET /metrics HTTP/1.1\r\n\r\n", 25, STDIN_FILENO);
        if (i % 4 == 1) socket_send(kept[i], nonsense, sizeof nonsense, -1);
        if (i % 4 == 2) socket_send(kept[i], nonsense, 112, STDIN_FILENO);     /* of the right length */
    }
    if (stranger) { barrier(size); barrier(size); return; }
    size--;
    connect_all(peers);
    barrier(size + 1);
    for (int peer = 0; peer < size; peer++) REQUIRE(peer == rank || !peer_is_gone(peers[peer]));
    REQUIRE(count_descriptors() < 3 + 3 + size + 32 + 8);              /* not the hundred that came */
    barrier(size + 1);
    release_all(peers);
    peers_release();
}
static void test_strangers_disturb_nobody(void **state)
{
    (void)state;
    run(3, say_nonsense, 0);
}
static void wait_to_be_dismissed(void)
{
    struct identity mine;
    REQUIRE(peers_acquire(&mine) == TUTTI_OK);
    int silent = socket_connect("peer", mine.nonce);
    struct pollfd end = { .fd = silent, .events = POLLIN };
    REQUIRE(silent >= 0 && poll(&end, 1, 2 * GENEROUS_MS) == 1);
    close(silent);
    peers_release();
}
static void test_silent_stranger_is_dismissed(void **state)
{
    (void)state;
    run(1, wait_to_be_dismissed, 0);
}
static void call_as_another_user(void)
{
    struct peer *peer;
    if (geteuid() != 0) _exit(SKIPPED);
    if (rank == 1) REQUIRE(setresuid(65534, 65534, 65534) == 0);
    join();
    REQUIRE(call(1 - rank, &peer) == TUTTI_SYSTEM);
    REQUIRE(strstr(status_detail(), "another user"));
    barrier(2);
    peers_release();
}
static void test_another_user_is_refused(void **state)
{
    (void)state;
    run(2, call_as_another_user, 0);
}
static void connect_as_another_user(void)                              /* with a client that does not look */
{
    struct identity mine;
    REQUIRE(peers_acquire(&mine) == TUTTI_OK);
    if (geteuid() != 0) _exit(SKIPPED);
    pid_t child = fork();
    if (child == 0) {
        struct { sa_family_t family; char path[108]; } name = { .family = AF_UNIX };
        size_t used = (size_t)snprintf(name.path + 1, 100, "tutti-peer-");
        for (int i = 0; i < 16; i++) used += (size_t)snprintf(name.path + 1 + used, 100 - used, "%02x", mine.nonce[i]);
        if (setresuid(65534, 65534, 65534) != 0) _exit(2);
        int out = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        if (connect(out, (struct sockaddr *)&name, (socklen_t)(sizeof(sa_family_t) + 1 + used)) != 0) _exit(3);
        char byte;
        _exit(recv(out, &byte, 1, 0) == 0 ? 0 : 4);                    /* it is hung up at once */
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    peers_release();
}
static void test_another_user_is_turned_away(void **state)
{
    (void)state;
    run(1, connect_as_another_user, 0);
}

/* ---- fork ---- */
static void fork_and_start_anew(void)
{
    struct peer *peers[MOST], *parent;
    struct identity anew;
    struct loss loss = { 0 };
    int before = count_descriptors();
    join();
    connect_all(peers);
    struct peer_watch watch = { .peer = peers[1 - rank], .lost = note_loss, .context = &loss };
    peer_watch(&watch);
    barrier(2);
    REQUIRE(descriptors_settle_at(before + 4));                        /* listener, poller, waker, connection */
    pid_t child = fork();
    if (child == 0) {
        REQUIRE(count_descriptors() == before);
        REQUIRE(count_threads() == 1);
        peers_release();                                               /* of its parent's: nothing happens */
        REQUIRE(peer_is_gone(peers[1 - rank]));
        REQUIRE(peers_acquire(&anew) == TUTTI_OK);
        REQUIRE(memcmp(anew.nonce, world->identity[rank].nonce, sizeof anew.nonce) != 0);
        for (int other = 0; other < 2; other++) {
            REQUIRE(call(other, &parent) == TUTTI_OK);
            peer_release(parent);
        }
        peers_release();
        _exit(0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    REQUIRE(!peer_is_gone(peers[1 - rank]) && !atomic_load(&loss.count));      /* the parent has noticed nothing */
    barrier(2);
    peer_unwatch(&watch);
    release_all(peers);
    peers_release();
}
static void test_child_of_fork_starts_anew(void **state)
{
    (void)state;
#if defined(__SANITIZE_THREAD__)
    print_message("the thread sanitizer does not allow threads in a child of a process with threads\n");
    skip();
#endif
    run(2, fork_and_start_anew, 0);
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_meet_at_once),
        cmocka_unit_test(test_four_meet_at_once),
        cmocka_unit_test(test_one_side_calls),
        cmocka_unit_test(test_threads_share_a_connection),
        cmocka_unit_test(test_nobody_there_and_oneself_are_errors),
        cmocka_unit_test(test_stopped_process_is_not_taken_for_dead),
        cmocka_unit_test(test_other_network_namespace_is_another_host),
        cmocka_unit_test(test_four_exchange_descriptors),
        cmocka_unit_test(test_unwanted_descriptors_are_bounded),
        cmocka_unit_test(test_death_is_told_to_all),
        cmocka_unit_test(test_death_is_told_although_children_live_on),
        cmocka_unit_test(test_who_leaves_is_gone),
        cmocka_unit_test(test_unwatch_waits_for_a_call_that_runs),
        cmocka_unit_test(test_strangers_disturb_nobody),
        cmocka_unit_test(test_silent_stranger_is_dismissed),
        cmocka_unit_test(test_another_user_is_refused),
        cmocka_unit_test(test_another_user_is_turned_away),
        cmocka_unit_test(test_child_of_fork_starts_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
