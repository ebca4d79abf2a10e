/* The shared state of a simulated machine: its creation, its lock, and the tables of lanes and points. */
#include "tests/fake_cuda/machine.h"
#include "tests/fake_cuda/settings.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct machine *machine;

/* The lock is robust, because tests kill processes. */
static void machine_init(void)
{
    pthread_mutexattr_t shared;
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&machine->lock, &shared);
    pthread_mutexattr_destroy(&shared);
    machine->ready = 1;
}
static int machine_file_open(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct stat status;
    if (fd < 0 || flock(fd, LOCK_EX) || fstat(fd, &status)) return -1;
    return status.st_size || ftruncate(fd, sizeof *machine) == 0 ? fd : -1;
}
/* Runs when the library is loaded, so that a process and its forked children have the same machine. */
__attribute__((constructor)) static void machine_open(void)
{
    const char *path = settings()->machine;
    int fd = path ? machine_file_open(path) : -1;
    if (path && fd < 0) {
        fprintf(stderr, "fake CUDA: FAKE_CUDA_MACHINE=%s cannot be opened; give a file in /dev/shm\n", path);
        abort();
    }
    int kind = MAP_SHARED | MAP_NORESERVE | (path ? 0 : MAP_ANONYMOUS);
    machine = mmap(NULL, sizeof *machine, PROT_READ | PROT_WRITE, kind, fd, 0);
    if (machine == MAP_FAILED) abort();
    if (!machine->ready) machine_init();
    /* The mapping keeps the file open, and with it a lock that nobody releases. */
    if (fd >= 0) {
        flock(fd, LOCK_UN);
        close(fd);
    }
}
_Noreturn void machine_full(const char *what, int most)
{
    fprintf(stderr, "fake CUDA: more than %d %s; raise the number in tests/fake_cuda/machine.h\n", most, what);
    abort();
}

void machine_lock(void)
{
    if (pthread_mutex_lock(&machine->lock) == EOWNERDEAD) pthread_mutex_consistent(&machine->lock);
}
void machine_unlock(void) { pthread_mutex_unlock(&machine->lock); }

uint32_t machine_changes(void) { return __atomic_load_n(&machine->changes, __ATOMIC_SEQ_CST); }
void machine_notify(void)
{
    __atomic_fetch_add(&machine->changes, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &machine->changes, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
void machine_wait(uint32_t seen, unsigned most_us)
{
    struct timespec most = { most_us / 1000000, most_us % 1000000 * 1000L };
    syscall(SYS_futex, &machine->changes, FUTEX_WAIT, seen, &most, NULL, 0);
}

void clock_merge(struct clock *clock, const struct clock *other)
{
    for (int lane = 0; lane < LANES; lane++)
        if (clock->seen[lane] < other->seen[lane]) clock->seen[lane] = other->seen[lane];
}

/* A lane that a dead process has left is free. Epochs go on, so that a new stream comes after the lane's last one. */
uint32_t lane_take(void)
{
    for (uint32_t tried = 0; tried < LANES; tried++) {
        uint32_t number = machine->next_lane++ % LANES;
        struct lane *lane = &machine->lanes[number];
        if (lane->pid && !(kill(lane->pid, 0) && errno == ESRCH)) continue;
        lane->pid = getpid();
        return number;
    }
    machine_full("streams at work", LANES);
}
void lane_release(uint32_t lane) { machine->lanes[lane].pid = 0; }

uint32_t point_create(void)
{
    for (uint32_t tried = 0; tried < POINTS; tried++) {
        uint32_t number = machine->next_point++ % (POINTS - 1) + 1;
        struct point *point = &machine->points[number];
        if (point->references) continue;
        point->references = 1;
        __atomic_store_n(&point->done, 0, __ATOMIC_RELEASE);
        return number;
    }
    machine_full("recorded points of streams", POINTS);
}
void point_hold(uint32_t point) { machine->points[point].references++; }
void point_drop(uint32_t point)
{
    if (point) machine->points[point].references--;
}
