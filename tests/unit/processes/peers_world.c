/* Runs processes that are peers of each other. A barrier fails after JOIN_MS, and SIGALRM ends a process after ten
   minutes, so no wait is endless. */
#include "tests/unit/processes/peers_world.h"
#include "backend/base/clock.h"
#include "backend/base/random.h"
#include "backend/base/status.h"
#include "tests/support/unit.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

struct world *world;
int size, rank;
struct key_id world_key;
static int next_barrier;

void world_fail(const char *text, const char *file, int line)
{
    fprintf(stderr, "process %d of %d, %s:%d: %s\nlast error: %s\n", rank, size, file, line, text, status_detail());
    _exit(1);
}
void sleep_ms(int ms) { nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000 }, NULL); }
void world_barrier(int count)
{
    int mine = next_barrier++;
    atomic_fetch_add(&world->arrived[mine], 1);
    for (int64_t until = clock_ms() + JOIN_MS; atomic_load(&world->arrived[mine]) < count; sleep_ms(1))
        REQUIRE(clock_ms() < until);
}
static int count_entries(const char *path)
{
    /* The entries . and .. do not count. */
    int count = -2;
    DIR *folder = opendir(path);
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}
int count_descriptors(void) { return count_entries("/proc/self/fd") - 1; }
int count_threads(void)
{
    /* The thread sanitizer has a thread of its own, which starts at any time. */
#if defined(__SANITIZE_THREAD__)
    return 1;
#endif
    return count_entries("/proc/self/task");
}
bool descriptors_settle_at(int expected)
{
    for (int64_t until = clock_ms() + GENEROUS_MS; clock_ms() < until; sleep_ms(1))
        if (count_descriptors() == expected) return true;
    return false;
}
bool threads_settle_at(int expected)
{
    for (int64_t until = clock_ms() + GENEROUS_MS; clock_ms() < until; sleep_ms(1))
        if (count_threads() == expected) return true;
    return false;
}
void world_run(int count, void (*body)(void), unsigned victims)
{
    pid_t children[MOST];
    world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(world != MAP_FAILED);
    assert_int_equal(random_fill(world->key, sizeof world->key), TUTTI_OK);
    size = count;
    next_barrier = 0;
    fflush(NULL);
    for (rank = 0; rank < count; rank++)
        if ((children[rank] = fork()) == 0) {
            alarm(600);
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
tutti_status world_acquire(struct identity *out)
{
    TRY(peers_acquire(out));
    return group_key_add(world->key, &world_key);
}
void world_join(void)
{
    REQUIRE(world_acquire(&world->identity[rank]) == TUTTI_OK);
    world_barrier(size);
}
tutti_status world_connect(const struct identity *other, int64_t timeout_ms, struct peer **out)
{
    struct peer *peer;
    TRY(peer_acquire(other, &world_key, &peer));
    tutti_status status = peer_await(peer, clock_ms() + timeout_ms);
    if (status == TUTTI_OK) *out = peer;
    else peer_release(peer);
    return status;
}
tutti_status world_call(int peer, struct peer **out) { return world_connect(&world->identity[peer], JOIN_MS, out); }
void world_connect_all(struct peer *peers[])
{
    for (int hop = 1; hop < size; hop++) {
        int peer = (rank + hop) % size;
        REQUIRE(world_call(peer, &peers[peer]) == TUTTI_OK);
    }
}
void world_release_all(struct peer *peers[])
{
    for (int peer = 0; peer < size; peer++)
        if (peer != rank) peer_release(peers[peer]);
}

struct sock_address world_contact(const char *address, unsigned port)
{
    struct sock_address c = { .family = strchr(address, ':') ? AF_INET6 : AF_INET, .port = (uint16_t)port };
    REQUIRE(inet_pton(c.family, address, c.address) == 1);
    return c;
}
void world_listen(const char *address)
{
    struct sock_address at = world_contact(address, 0);
    REQUIRE(world_acquire(&world->identity[rank]) == TUTTI_OK);
    REQUIRE(links_listen(&at, &world->contact[rank]) == TUTTI_OK && world->contact[rank].port);
    world_barrier(size);
}
struct peer *world_hold(int peer)
{
    struct peer *held;
    REQUIRE(link_acquire(&world->identity[peer], &world_key, &world->contact[peer], &held) == TUTTI_OK);
    return held;
}
struct peer *world_link(int peer)
{
    struct peer *held = world_hold(peer);
    REQUIRE(link_await(held, clock_ms() + JOIN_MS) == TUTTI_OK);
    return held;
}

void loss_record(void *context)
{
    struct loss *loss = context;
    loss->thread = pthread_self();
    atomic_fetch_add(&loss->count, 1);
}
void loss_await(struct loss *loss)
{
    for (int64_t until = clock_ms() + GENEROUS_MS; !atomic_load(&loss->count); sleep_ms(1)) REQUIRE(clock_ms() < until);
    REQUIRE(!pthread_equal(loss->thread, pthread_self()));
}
