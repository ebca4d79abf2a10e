/* Every change of watched memory is reported before other memory can be used at its address. Each test runs in a
   process of its own. If the kernel or a container forbids watching, it prints the reason and is skipped. */
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
/* A listener that counts the reports, and records the range of the last one. */
static struct recorder {
    struct mapping_listener listener;
    int reports;
    uintptr_t begin, end;
} recorder;
static void change_record(struct mapping_listener *listener, uintptr_t begin, uintptr_t end)
{
    struct recorder *r = (struct recorder *)(void *)listener;
    r->reports++;
    r->begin = begin;
    r->end = end;
}
static void need(bool so, const char *what)
{
    if (so) return;
    fprintf(stderr, "not so: %s (%d reports, the last of %#zx to %#zx)\n", what, recorder.reports, recorder.begin,
        recorder.end);
    _exit(1);
}
static void in_a_process(void (*each)(void))
{
    int how;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(SECONDS);
        recorder.listener.on_range_gone = change_record;
        if (mappings_add_listener(&recorder.listener) != TUTTI_OK) {
            fprintf(stderr, "SKIPPED: %s\n", status_detail());
            _exit(SKIPPED);
        }
        each();
        mappings_remove_listener(&recorder.listener);
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
    if (!at) at = address_find_unused(bytes);
    return mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}
static void watch(const void *at, size_t length)
{
    mappings_lock();
    bool watched = mappings_watch_range((uintptr_t)at, (uintptr_t)at + length);
    mappings_unlock();
    need(watched, "it can be watched");
}
/* Returns the number of reports. It does not settle, because a change must be reported before its call has returned. */
static int reports_count(const struct recorder *r)
{
    mappings_lock();
    int count = r->reports;
    mappings_unlock();
    return count;
}
/* Settles, and returns the number of reports since the last call. */
static int reports_take(void)
{
    while (!mappings_lock_and_settle()) mappings_unlock();
    int count = recorder.reports;
    recorder.reports = 0;
    mappings_unlock();
    return count;
}
static unsigned char *map_and_watch(void)
{
    unsigned char *at = map_at(NULL, 0);
    need(at != MAP_FAILED, "there is memory");
    memset(at, 1, bytes);
    watch(at, bytes);
    reports_take();
    return at;
}
/* Checks that one report about this range has come, without settling. */
static void need_report(const void *begin, size_t length, const char *what)
{
    mappings_lock();
    need(recorder.reports == 1, what);
    need(recorder.begin == (uintptr_t)begin && recorder.end == (uintptr_t)begin + length, what);
    recorder.reports = 0;
    mappings_unlock();
}

/* ---- every change ---- */
static void unmaps(void)
{
    unsigned char *at = map_and_watch();
    munmap(at + page, 2 * page);
    need_report(at + page, 2 * page, "munmap of a part is reported");
    munmap(at, bytes);
    need(reports_take() >= 1, "munmap of the rest is reported");
}
IN_A_PROCESS(test_munmap_is_reported, unmaps)
static void maps_over(void)
{
    unsigned char *at = map_and_watch();
    need(map_at(at, MAP_FIXED) == at, "it is mapped over");
    need_report(at, bytes, "mmap over it is reported");
}
IN_A_PROCESS(test_mmap_over_watched_memory_is_reported, maps_over)
static void moves(void)
{
    unsigned char *at = map_and_watch(), *there = map_at(NULL, 0);
    need(mremap(at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, there) == there, "it is moved");
    need(reports_take() >= 1 && recorder.begin == (uintptr_t)at && recorder.end == (uintptr_t)at + bytes,
        "mremap is reported");
    munmap(there, bytes);
    need(reports_take() == 0, "memory is not watched at its new address");
}
IN_A_PROCESS(test_mremap_is_reported, moves)
static void shrinks(void)
{
    unsigned char *at = map_and_watch();
    need(mremap(at, bytes, page, 0) == at, "it is shortened");
    need_report(at + page, bytes - page, "the end that is cut off is reported");
}
IN_A_PROCESS(test_mremap_that_shrinks_is_reported, shrinks)
static void drops(int how)
{
    unsigned char *at = map_and_watch();
    need(madvise(at + page, page, how) == 0, "pages are dropped");
    need_report(at + page, page, "madvise is reported");
    madvise(at + page, page, how);
    need(reports_take() == 0, "a second madvise is not, because these pages are no longer watched");
    munmap(at, page);
    need_report(at, page, "other pages are still watched");
}
static void drops_now(void) { drops(MADV_DONTNEED); }
static void drops_later(void) { drops(MADV_FREE); }
IN_A_PROCESS(test_dropped_pages_are_reported, drops_now)
IN_A_PROCESS(test_pages_that_may_be_dropped_are_reported, drops_later)
static void of_a_file(void)
{
    int file = memfd_create("tensors", MFD_CLOEXEC);
    need(file >= 0 && ftruncate(file, (off_t)bytes) == 0, "there is a file");
    unsigned char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    memset(at, 1, bytes);
    watch(at, bytes);
    need(madvise(at, page, MADV_REMOVE) == 0, "a hole is made through the mapping");
    need_report(at, page, "a hole is reported");
    munmap(at, bytes);
    need(reports_take() >= 1, "munmap is reported");
}
IN_A_PROCESS(test_memory_that_processes_share_is_watched, of_a_file)
/* The allocators of sanitizers keep freed memory. */
#ifndef FEW
static void by_the_allocator(void)
{
    enum { LARGE = 64 << 20 };
    unsigned char *at = malloc(LARGE);
    need(at != NULL, "there is memory");
    memset(at, 1, LARGE);
    watch(at, LARGE);
    reports_take();
    unsigned char *volatile other = realloc(at, 2 * (size_t)LARGE);
    bool moved = other != at;
    need(other && (reports_take() > 0 || !moved), "realloc that moves it is reported");
    watch(other, 2 * (size_t)LARGE);
    free(other);
    need(reports_take() > 0, "free is reported");
}
IN_A_PROCESS(test_free_and_realloc_are_reported, by_the_allocator)
#endif
static void changes_nothing(void)
{
    unsigned char *at = map_and_watch(), *other = map_at(NULL, 0);
    at[page] = 2;
    mprotect(at, bytes, PROT_READ);
    mprotect(at, bytes, PROT_READ | PROT_WRITE);
    madvise(at, bytes, MADV_WILLNEED);
    munmap(other, bytes);
    need(reports_take() == 0 && at[page] == 2, "unchanged memory and unwatched memory are not reported");
    munmap(at, bytes);
}
IN_A_PROCESS(test_unchanged_memory_is_not_reported, changes_nothing)
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
IN_A_PROCESS(test_a_file_that_cannot_be_watched_harms_nothing, cannot_watch)
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
    need_report(at, huge, "huge pages are reported whole");
}
IN_A_PROCESS(test_huge_pages_are_watched, huge_pages)

/* ---- an address that is used again at once ---- */
static void *unmapper(void *at)
{
    munmap(at, bytes);
    return NULL;
}
/* Memory is mapped at the address again while munmap has not returned, and its event may not be in the queue yet. */
static void reuses(void)
{
    pthread_t thread;
    for (int i = 0; i < 200; i++) {
        unsigned char *at = map_and_watch();
        /* No thread reads events while the lock is held. */
        mappings_lock();
        need(pthread_create(&thread, NULL, unmapper, at) == 0, "there is a thread");
        while (map_at(at, MAP_FIXED_NOREPLACE) != at) sched_yield();
        mappings_unlock();
        need(reports_take() == 1, "a thread that settles gets the report even if munmap has not returned");
        pthread_join(thread, NULL);
        munmap(at, bytes);
    }
}
IN_A_PROCESS(test_settling_gets_the_report_before_munmap_returns, reuses)

/* ---- fork, the end of watching, and a closed descriptor ---- */
/* The forked child starts threads. */
#ifndef NO_PROCESSES
static void forks(void)
{
    int how;
    unsigned char *at = map_and_watch();
    pid_t child = fork();
    if (child == 0) {
        struct recorder mine = { .listener = { .on_range_gone = change_record } };
        alarm(SECONDS);
        munmap(at, page);
        need(reports_count(&recorder) == 0, "the child's memory is not watched");
        mappings_remove_listener(&recorder.listener);
        need(mappings_add_listener(&mine.listener) == TUTTI_OK, "the child can add a listener");
        watch(at + page, page);
        munmap(at + page, page);
        need(reports_count(&mine) == 1, "and gets reports");
        mappings_remove_listener(&mine.listener);
        _exit(0);
    }
    need(waitpid(child, &how, 0) == child && how == 0, "the child ended well");
    need(reports_take() == 0 && at[0] == 1, "changes of the child's memory are not reported");
    munmap(at, bytes);
    need_report(at, bytes, "the parent's memory is still watched");
}
IN_A_PROCESS(test_a_forked_child_watches_its_own_memory, forks)
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
    struct recorder second = { .listener = { .on_range_gone = change_record } };
    unsigned char *at = map_and_watch();
    need(mappings_add_listener(&second.listener) == TUTTI_OK, "there may be several listeners");
    munmap(at, page);
    need(reports_count(&recorder) == 1 && reports_count(&second) == 1, "all listeners get the report");
    mappings_remove_listener(&recorder.listener);
    munmap(at + page, page);
    need(reports_count(&recorder) == 1 && reports_count(&second) == 2, "a removed listener does not");
    mappings_remove_listener(&second.listener);
    need(descriptor_of_ours() < 0, "without listeners the descriptor is closed");
    /* No thread reads events now, so munmap must not wait for one. */
    munmap(at, bytes);
    need(mappings_add_listener(&recorder.listener) == TUTTI_OK, "and watching can begin again");
}
IN_A_PROCESS(test_the_last_listener_ends_watching, ends)
static void loses(void)
{
    map_and_watch();
    need(close(descriptor_of_ours()) == 0, "a program closes the descriptor");
    mappings_lock_and_settle();
    need(recorder.reports >= 1 && recorder.begin == 0 && recorder.end == UINTPTR_MAX, "all memory is reported");
    need(!mappings_watch_range(page, 2 * page), "and no memory can be watched");
    mappings_unlock();
    mappings_remove_listener(&recorder.listener);
    need(mappings_add_listener(&recorder.listener) == TUTTI_OK, "until watching begins again");
    watch(map_at(NULL, 0), bytes);
}
IN_A_PROCESS(test_a_closed_descriptor_reports_all_memory, loses)

/* ---- no deadlocks ---- */
#ifndef NO_PROCESSES
static _Atomic bool stop;
static void *churner(void *unused)
{
    while (!stop) {
        unsigned char *volatile at = malloc(PAGES * page), *volatile behind = malloc(page);
        at[0] = behind[0] = 1;
        watch(at, PAGES * page);
        /* `behind` keeps the memory in the heap, until malloc_trim drops its pages with the allocator's lock held. */
        free(at);
        malloc_trim(0);
        free(behind);
    }
    return unused;
}
/* Threads that return memory hold the allocator's lock, which fork takes too. */
static void churns(void)
{
    pthread_t threads[2];
    int how;
    for (int i = 0; i < 2; i++) need(pthread_create(&threads[i], NULL, churner, NULL) == 0, "there is a thread");
    for (int i = 0; i < 100; i++) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        need(waitpid(child, &how, 0) == child && how == 0, "children end");
        /* It may fail to settle, because the threads never pause. */
        mappings_lock_and_settle();
        mappings_unlock();
    }
    stop = true;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}
IN_A_PROCESS(test_the_allocator_and_fork_do_not_deadlock, churns)
#endif
/* The C library keeps up to 40 MiB of stacks of ended threads, and unmaps the oldest ones beyond that. So joining the
   thread that reads events may unmap a watched stack when no thread is left to read the event. */
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
    need(reports_count(&recorder) > 0, "a stack was unmapped");
}
IN_A_PROCESS(test_unmapping_the_stack_of_an_ended_thread_does_not_deadlock, stacks_that_are_kept)
unit_function test_verbs_mappings;
int test_verbs_mappings(void)
{
    page = (size_t)sysconf(_SC_PAGESIZE);
    bytes = PAGES * page;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_munmap_is_reported),
        cmocka_unit_test(test_mmap_over_watched_memory_is_reported),
        cmocka_unit_test(test_mremap_is_reported),
        cmocka_unit_test(test_mremap_that_shrinks_is_reported),
        cmocka_unit_test(test_dropped_pages_are_reported),
        cmocka_unit_test(test_pages_that_may_be_dropped_are_reported),
        cmocka_unit_test(test_memory_that_processes_share_is_watched),
#ifndef FEW
        cmocka_unit_test(test_free_and_realloc_are_reported),
#endif
        cmocka_unit_test(test_unchanged_memory_is_not_reported),
        cmocka_unit_test(test_a_file_that_cannot_be_watched_harms_nothing),
        cmocka_unit_test(test_huge_pages_are_watched),
        cmocka_unit_test(test_settling_gets_the_report_before_munmap_returns),
#ifndef NO_PROCESSES
        cmocka_unit_test(test_a_forked_child_watches_its_own_memory),
#endif
        cmocka_unit_test(test_the_last_listener_ends_watching),
        cmocka_unit_test(test_a_closed_descriptor_reports_all_memory),
#ifndef NO_PROCESSES
        cmocka_unit_test(test_the_allocator_and_fork_do_not_deadlock),
#endif
        cmocka_unit_test(test_unmapping_the_stack_of_an_ended_thread_does_not_deadlock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
