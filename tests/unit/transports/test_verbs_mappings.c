/* That every change of watched memory is told before anybody can find something else there. Each test has a process of
   its own, and ends with a line that says so where the kernel, or a container, forbids watching. */
#include "backend/transports/verbs/memory/mappings.h"
#include "tests/support/unit.h"
#include "tests/unit/transports/aside.h"
#include <dirent.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { SECONDS = 600, SKIPPED = 77, PAGES = 16 };
static size_t page, bytes;
static struct ear {
    struct mapping_listener listener;
    int told;
    uintptr_t begin, end;
} ear;
static void hear(struct mapping_listener *listener, uintptr_t begin, uintptr_t end)
{
    struct ear *e = (struct ear *)(void *)listener;
    e->told++;
    e->begin = begin;
    e->end = end;
}
static void need(bool so, const char *what)
{
    if (so) return;
    fprintf(stderr, "not so: %s (told %d times, of %#zx to %#zx)\n", what, ear.told, ear.begin, ear.end);
    _exit(1);
}
static void in_a_process(void (*each)(void))
{
    int how;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(SECONDS);
        ear.listener.on_range_gone = hear;
        if (mappings_add_listener(&ear.listener) != TUTTI_OK) {
            fprintf(stderr, "SKIPPED: %s\n", status_detail());
            _exit(SKIPPED);
        }
        each();
        mappings_remove_listener(&ear.listener);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    if (WIFEXITED(how) && WEXITSTATUS(how) == SKIPPED) skip();
    assert_int_equal(how, 0);
}
#define IN_A_PROCESS(test, each) \
    static void test(void **state) \
    { \
        (void)state; \
        in_a_process(each); \
    }
static unsigned char *map_at(void *at, int flags)
{
    if (!at) at = aside(bytes);
    return mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}
static void watch(const void *at, size_t length)
{
    mappings_lock();
    bool watched = mappings_watch_range((uintptr_t)at, (uintptr_t)at + length);
    mappings_unlock();
    need(watched, "it can be watched");
}
static int told_so_far(const struct ear *e)
{
    mappings_lock();                                    /* not settled: it must have been told before a call returned */
    int count = e->told;
    mappings_unlock();
    return count;
}
static int told(void)                                   /* and forgets it */
{
    while (!mappings_lock_and_settle()) mappings_unlock();
    int count = ear.told;
    ear.told = 0;
    mappings_unlock();
    return count;
}
static unsigned char *map_and_watch(void)
{
    unsigned char *at = map_at(NULL, 0);
    need(at != MAP_FAILED, "there is memory");
    memset(at, 1, bytes);
    watch(at, bytes);
    told();
    return at;
}
static void need_told(const void *begin, size_t length, const char *what)
{
    mappings_lock(); /* not settled: it must have been told before the call returned */
    need(ear.told == 1, what);
    need(ear.begin == (uintptr_t)begin && ear.end == (uintptr_t)begin + length, what);
    ear.told = 0;
    mappings_unlock();
}

/* ---- every change ---- */
static void unmaps(void)
{
    unsigned char *at = map_and_watch();
    munmap(at + page, 2 * page);
    need_told(at + page, 2 * page, "munmap of a part is told");
    munmap(at, bytes);
    need(told() >= 1, "munmap of the rest is told");
}
IN_A_PROCESS(test_munmap_is_told, unmaps)
static void maps_over(void)
{
    unsigned char *at = map_and_watch();
    need(map_at(at, MAP_FIXED) == at, "it is mapped over");
    need_told(at, bytes, "mmap over it is told");
}
IN_A_PROCESS(test_mmap_over_it_is_told, maps_over)
static void moves(void)
{
    unsigned char *at = map_and_watch(), *there = map_at(NULL, 0);
    need(mremap(at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, there) == there, "it is moved");
    need(told() >= 1 && ear.begin == (uintptr_t)at && ear.end == (uintptr_t)at + bytes, "mremap is told");
    munmap(there, bytes);
    need(told() == 0, "where it went it is not watched");
}
IN_A_PROCESS(test_mremap_is_told, moves)
static void shrinks(void)
{
    unsigned char *at = map_and_watch();
    need(mremap(at, bytes, page, 0) == at, "it is shortened");
    need_told(at + page, bytes - page, "what is cut off is told");
}
IN_A_PROCESS(test_mremap_to_less_is_told, shrinks)
static void drops(int how)
{
    unsigned char *at = map_and_watch();
    need(madvise(at + page, page, how) == 0, "pages are dropped");
    need_told(at + page, page, "madvise is told");
    madvise(at + page, page, how);
    need(told() == 0, "once, as nobody watches these pages any more");
    munmap(at, page);
    need_told(at, page, "others are watched still");
}
static void drops_now(void) { drops(MADV_DONTNEED); }
static void drops_later(void) { drops(MADV_FREE); }
IN_A_PROCESS(test_dropped_pages_are_told, drops_now)
IN_A_PROCESS(test_pages_that_may_be_dropped_are_told, drops_later)
static void of_a_file(void)
{
    int file = memfd_create("tensors", MFD_CLOEXEC);
    need(file >= 0 && ftruncate(file, (off_t)bytes) == 0, "there is a file");
    unsigned char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    memset(at, 1, bytes);
    watch(at, bytes);
    need(madvise(at, page, MADV_REMOVE) == 0, "a hole is made through the mapping");
    need_told(at, page, "holes are told");
    munmap(at, bytes);
    need(told() >= 1, "munmap is told");
}
IN_A_PROCESS(test_memory_that_processes_share_is_watched, of_a_file)
#ifndef FEW /* allocators of sanitizers keep what is freed */
static void by_the_allocator(void)
{
    enum { LARGE = 64 << 20 };
    unsigned char *at = malloc(LARGE);
    need(at != NULL, "there is memory");
    memset(at, 1, LARGE);
    watch(at, LARGE);
    told();
    unsigned char *volatile other = realloc(at, 2 * (size_t)LARGE);
    bool moved = other != at;
    need(other && (told() > 0 || !moved), "realloc that moves it is told");
    watch(other, 2 * (size_t)LARGE);
    free(other);
    need(told() > 0, "free is told");
}
IN_A_PROCESS(test_free_and_realloc_are_told, by_the_allocator)
#endif
static void what_stays(void)
{
    unsigned char *at = map_and_watch(), *other = map_at(NULL, 0);
    at[page] = 2;
    mprotect(at, bytes, PROT_READ);
    mprotect(at, bytes, PROT_READ | PROT_WRITE);
    madvise(at, bytes, MADV_WILLNEED);
    munmap(other, bytes);
    need(told() == 0 && at[page] == 2, "what stays, and what is not watched, is not told");
    munmap(at, bytes);
}
IN_A_PROCESS(test_what_stays_is_not_told, what_stays)
static void cannot_watch(void)
{
    char path[] = P_tmpdir "/mappings-XXXXXX";
    int file = mkstemp(path);
    need(file >= 0 && unlink(path) == 0 && ftruncate(file, (off_t)bytes) == 0, "there is a file");
    unsigned char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    mappings_lock_and_settle();
    bool watched = mappings_watch_range((uintptr_t)at, (uintptr_t)at + bytes);
    mappings_unlock();
    if (watched) printf("this folder is in memory, so its files can be watched\n");
    watch(map_at(NULL, 0), bytes);
}
IN_A_PROCESS(test_files_are_not_watched, cannot_watch)
static void huge_pages(void)
{
    const size_t huge = (size_t)2 << 20;
    unsigned char *at = mmap(NULL, huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (at == MAP_FAILED) {
        fprintf(stderr, "SKIPPED: no huge pages are set aside (/proc/sys/vm/nr_hugepages): %s\n", strerror(errno));
        _exit(SKIPPED);
    }
    at[0] = 1;
    watch(at + page, page);
    munmap(at, huge);
    need_told(at, huge, "they are watched whole");
}
IN_A_PROCESS(test_huge_pages_are_watched, huge_pages)

/* ---- before anybody finds something else there ---- */
static void *unmapper(void *at)
{
    munmap(at, bytes);
    return NULL;
}
/* The address is somebody else's while munmap has not returned yet: its event is in the queue, or not even that. */
static void reuses(void)
{
    pthread_t thread;
    for (int i = 0; i < 200; i++) {
        unsigned char *at = map_and_watch();
        mappings_lock(); /* nobody reads */
        need(pthread_create(&thread, NULL, unmapper, at) == 0, "there is a thread");
        while (map_at(at, MAP_FIXED_NOREPLACE) != at) sched_yield();
        mappings_unlock();
        need(told() == 1, "whoever settles knows before munmap has returned to its caller");
        pthread_join(thread, NULL);
        munmap(at, bytes);
    }
}
IN_A_PROCESS(test_an_address_is_not_used_again_before_it_is_told, reuses)

/* ---- fork, the end, and what others do to us ---- */
#ifndef NO_PROCESSES /* a child that starts threads */
static void forks(void)
{
    int how;
    unsigned char *at = map_and_watch();
    pid_t child = fork();
    if (child == 0) {
        struct ear mine = { .listener = { .on_range_gone = hear } };
        alarm(SECONDS);
        munmap(at, page);
        need(told_so_far(&ear) == 0, "the child's memory is not watched");
        mappings_remove_listener(&ear.listener);
        need(mappings_add_listener(&mine.listener) == TUTTI_OK, "the child can listen, too");
        watch(at + page, page);
        munmap(at + page, page);
        need(told_so_far(&mine) == 1, "and is told");
        mappings_remove_listener(&mine.listener);
        _exit(0);
    }
    need(waitpid(child, &how, 0) == child && how == 0, "the child ended well");
    need(told() == 0 && at[0] == 1, "what the child does to its own memory is not told");
    munmap(at, bytes);
    need_told(at, bytes, "the parent's is watched still");
}
IN_A_PROCESS(test_a_child_of_fork_begins_anew, forks)
#endif
static int descriptor_of_ours(void)
{
    int found = -1;
    char path[64], target[64];
    DIR *all = opendir("/proc/self/fd");
    for (const struct dirent *e; all && (e = readdir(all)) != NULL;) {
        snprintf(path, sizeof path, "/proc/self/fd/%.20s", e->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        if (length > 0 && memmem(target, (size_t)length, "userfaultfd", 11)) found = atoi(e->d_name);
    }
    closedir(all);
    return found;
}
static void ends(void)
{
    struct ear second = { .listener = { .on_range_gone = hear } };
    unsigned char *at = map_and_watch();
    need(mappings_add_listener(&second.listener) == TUTTI_OK, "there may be several");
    munmap(at, page);
    need(told_so_far(&ear) == 1 && told_so_far(&second) == 1, "all are told");
    mappings_remove_listener(&ear.listener);
    munmap(at + page, page);
    need(told_so_far(&ear) == 1 && told_so_far(&second) == 2, "who has left is not");
    mappings_remove_listener(&second.listener);
    need(descriptor_of_ours() < 0, "nothing is left");
    munmap(at, bytes); /* nobody reads, nobody waits */
    need(mappings_add_listener(&ear.listener) == TUTTI_OK, "and it can begin anew");
}
IN_A_PROCESS(test_the_last_leaves_nothing, ends)
static void loses(void)
{
    map_and_watch();
    need(close(descriptor_of_ours()) == 0, "a program closes what it does not know");
    mappings_lock_and_settle();
    need(ear.told >= 1 && ear.begin == 0 && ear.end == UINTPTR_MAX, "all is told to be gone");
    need(!mappings_watch_range(page, 2 * page), "and nothing is watched");
    mappings_unlock();
    mappings_remove_listener(&ear.listener);
    need(mappings_add_listener(&ear.listener) == TUTTI_OK, "until it begins anew");
    watch(map_at(NULL, 0), bytes);
}
IN_A_PROCESS(test_a_lost_descriptor_is_noticed, loses)

/* ---- nobody waits for ever ---- */
#ifndef NO_PROCESSES
static _Atomic bool stop;
static void *churner(void *unused)
{
    while (!stop) {
        unsigned char *volatile at = malloc(PAGES * page), *volatile behind = malloc(page);
        at[0] = behind[0] = 1;
        watch(at, PAGES * page);
        free(at); /* not at the end of what the allocator has, so it stays there */
        malloc_trim(0);                                 /* until it drops its pages, with its lock held */
        free(behind);
    }
    return unused;
}
/* Threads that give memory back hold the allocator's lock, which fork takes, too. */
static void churns(void)
{
    pthread_t threads[2];
    int how;
    for (int i = 0; i < 2; i++) need(pthread_create(&threads[i], NULL, churner, NULL) == 0, "there is a thread");
    for (int i = 0; i < 100; i++) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        need(waitpid(child, &how, 0) == child && how == 0, "children end");
        mappings_lock_and_settle(); /* or not: they never pause */
        mappings_unlock();
    }
    stop = true;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}
IN_A_PROCESS(test_the_allocator_and_fork_do_not_wait_for_ever, churns)
#endif
/* The C library keeps stacks of threads that have ended, up to 40 MiB, and unmaps the oldest when there are more: so
   when the thread that reads events is joined one that is watched may go, with nobody left to read of it. */
enum { STACKS = 4, STACK_BYTES = 13 << 20 };
static void *watch_my_stack(void *meet)
{
    unsigned char mine[3 << 16];
    memset(mine, 1, sizeof mine);
    watch(mine, sizeof mine);
    pthread_barrier_wait(meet);
    return NULL;
}
static void stacks_that_are_kept(void)
{
    pthread_t threads[STACKS];
    pthread_attr_t how;
    pthread_barrier_t meet;
    pthread_attr_init(&how);
    pthread_attr_setstacksize(&how, STACK_BYTES);
    pthread_barrier_init(&meet, NULL, STACKS);
    for (int i = 0; i < STACKS; i++)
        need(pthread_create(&threads[i], &how, watch_my_stack, &meet) == 0, "a thread is started");
    for (int i = 0; i < STACKS; i++) pthread_join(threads[i], NULL);
    need(told_so_far(&ear) > 0, "a stack was given back");
}
IN_A_PROCESS(test_stacks_of_threads_that_have_ended, stacks_that_are_kept)
unit_function test_verbs_mappings;
int test_verbs_mappings(void)
{
    page = (size_t)sysconf(_SC_PAGESIZE);
    bytes = PAGES * page;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_munmap_is_told),
        cmocka_unit_test(test_mmap_over_it_is_told),
        cmocka_unit_test(test_mremap_is_told),
        cmocka_unit_test(test_mremap_to_less_is_told),
        cmocka_unit_test(test_dropped_pages_are_told),
        cmocka_unit_test(test_pages_that_may_be_dropped_are_told),
        cmocka_unit_test(test_memory_that_processes_share_is_watched),
#ifndef FEW
        cmocka_unit_test(test_free_and_realloc_are_told),
#endif
        cmocka_unit_test(test_what_stays_is_not_told),
        cmocka_unit_test(test_files_are_not_watched),
        cmocka_unit_test(test_huge_pages_are_watched),
        cmocka_unit_test(test_an_address_is_not_used_again_before_it_is_told),
#ifndef NO_PROCESSES
        cmocka_unit_test(test_a_child_of_fork_begins_anew),
#endif
        cmocka_unit_test(test_the_last_leaves_nothing),
        cmocka_unit_test(test_a_lost_descriptor_is_noticed),
#ifndef NO_PROCESSES
        cmocka_unit_test(test_the_allocator_and_fork_do_not_wait_for_ever),
#endif
        cmocka_unit_test(test_stacks_of_threads_that_have_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
