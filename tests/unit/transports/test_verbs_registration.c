/* The registration cache: what it registers when, and that a registration is always of the memory that is at its
   address now. A fake device takes the place of the library. It records the first word of each page of a region when
   the region is registered, because a device that has pinned these pages goes on seeing them. */
#include "backend/memory/arena.h"
#include "backend/transports/verbs/memory/mappings.h"
#include "tests/support/forbid.h"
#include "tests/support/unit.h"
#include "tests/unit/transports/aside.h"
#include "tests/unit/transports/made_device.h"
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { SECONDS = 600, SKIPPED = 77, TENSOR_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ };

/* ---- helpers ---- */
static void need(bool so, const char *what)
{
    if (so) return;
    fprintf(stderr, "not so: %s (%d regions of %zu bytes, asked %d times; %s)\n", what, regions, registered_bytes,
        asked, status_detail());
    _exit(1);
}
static struct registration_cache *r;
static void make(size_t bytes, int entries)
{
    const struct registration_limits limits = { bytes, entries };
    need(registration_cache_create(&domain, limits, &r) == TUTTI_OK, "there is memory");
}
static void need_watching(void)
{
    if (registration_cache_can_watch(r)) return;
    fprintf(stderr, "SKIPPED: %s\n", status_detail());
    _exit(SKIPPED);
}
static void in_a_process(void (*each)(void))
{
    int how;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(SECONDS);
        verbs = (struct verbs_calls){ .ibv_get_device_name = device_name,
            .ibv_reg_mr = register_memory,
            .ibv_dereg_mr = memory_deregister,
            .ibv_reg_dmabuf_mr = register_dmabuf };
        each();
        registration_cache_destroy(r);
        need(regions == 0, "no region stays registered");
        _exit(0);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    if (WIFEXITED(how) && WEXITSTATUS(how) == SKIPPED) skip();
    assert_int_equal(how, 0);
}
/* Maps pages at that address (NULL: any), and writes the word to each. */
static unsigned char *pages_at(void *at, size_t count, uint64_t word)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0);
    if (!at) at = address_find_unused(count * page);
    unsigned char *mapped = mmap(at, count * page, PROT_READ | PROT_WRITE, flags, -1, 0);
    need(mapped != MAP_FAILED, "there is memory");
    for (size_t i = 0; i < count; i++) memcpy(mapped + i * page, &word, sizeof word);
    return mapped;
}
static struct registered take(const void *at, size_t bytes)
{
    struct registered t = { .region = NULL };
    need(registration_cache_take(r, at, bytes, true, &t) == TUTTI_OK, "it is registered");
    uintptr_t begin = (uintptr_t)t.region->addr;
    need(begin <= (uintptr_t)at && (uintptr_t)at + bytes <= begin + t.region->length, "what is registered covers it");
    return t;
}
static void registered_give(struct registered t) { registration_cache_give(r, &t); }
static int asked_since(void)
{
    int count = asked;
    asked = 0;
    return count;
}

/* ---- cached registrations ---- */
static void test_registrations_are_used_again(void)
{
    make(0, 0);
    need_watching();
    unsigned char *at = pages_at(NULL, 4, 1);
    struct registered first = take(at + 100, page), second = take(at + 8, 3000), third = take(at + 2 * page, 1);
    need(asked_since() == 2 && regions == 2, "a part of registered pages is not registered again");
    need(first.region == second.region && first.region != third.region, "each registration serves its own pages");
    need(((struct region *)(void *)first.region)->access == TENSOR_ACCESS, "peers may read it and not write it");
    registered_give(first);
    registered_give(second);
    registered_give(third);
    need(regions == 2, "registrations stay when they are given back");
    registered_give(take(at, 2 * page));
    need(asked_since() == 0, "and are used again");
    struct registration_counts counts = registration_cache_get_counts(r);
    need(counts.hits == 2 && counts.misses == 2 && counts.entries == 2 && counts.bytes == 3 * page,
        "hits, misses, entries and bytes are counted");
}
static void test_entries_and_bytes_are_bounded(void)
{
    make(8 * page, 3);
    need_watching();
    unsigned char *at = pages_at(NULL, 64, 1);
    struct registered used = take(at, 1);
    registered_give(take(at + 2 * page, 1));
    registered_give(take(at + 4 * page, 1));
    registered_give(take(at + 2 * page, 1));
    /* The fourth entry evicts the least recently used one, of page 4. */
    registered_give(take(at + 6 * page, 1));
    need(regions == 3, "entries are bounded");
    asked_since();
    registered_give(take(at, 1));
    registered_give(take(at + 2 * page, 1));
    need(asked_since() == 0, "entries that were used later, or are in use, stay");
    registered_give(take(at + 4 * page, 1));
    need(asked_since() == 1, "the least recently used entry was evicted");
    registered_give(take(at + 16 * page, 7 * page));
    need(regions == 2 && registered_bytes == 8 * page, "bytes are bounded, and entries in use stay");
    registered_give(take(at + 32 * page, 9 * page));
    need(regions == 2 && registration_cache_get_counts(r).once == 1,
        "memory beyond the limit is registered for one use");
    registered_give(used);
}
static void test_read_only_memory_is_registered_for_reading(void)
{
    make(0, 0);
    need_watching();
    unsigned char *at = pages_at(NULL, 1, 1);
    struct registered t;
    read_only = at;
    need(registration_cache_take(r, at, page, false, &t) == TUTTI_OK && last_access == IBV_ACCESS_REMOTE_READ,
        "read-only memory is registered for reading");
    registered_give(t);
    need(registration_cache_take(r, at, page, true, &t) == TUTTI_INVALID_ARGUMENT, "but not for writing");
    need(strstr(status_detail(), "made0") != NULL, "and the error names the device");
    asked_since();
    need(registration_cache_take(r, at, page, false, &t) == TUTTI_OK && asked_since() == 0,
        "the registration for reading is used again");
    registered_give(t);
}

/* ---- changed memory ---- */
static void test_memory_mapped_again_is_registered_again(void)
{
    make(0, 0);
    need_watching();
    unsigned char *at = pages_at(NULL, 4, 1);
    for (uint64_t word = 1; word < 300; word++) {
        struct registered t = take(at, 4 * page);
        need(device_read_word(&t, at + page) == word, "the device sees the memory that is mapped now");
        registered_give(t);
        munmap(at, 4 * page);
        pages_at(at, 4, word + 1);
    }
    registration_cache_sweep(r);
    need(regions == 0 && registration_cache_get_counts(r).entries == 0, "unmapped memory does not stay registered");
}
static void test_dropped_and_moved_pages_are_registered_again(void)
{
    make(0, 0);
    need_watching();
    unsigned char *at = pages_at(NULL, 8, 1);
    const uint64_t two = 2;
    registered_give(take(at, 8 * page));
    madvise(at + 4 * page, page, MADV_DONTNEED);
    memcpy(at + 4 * page, &two, sizeof two);
    struct registered t = take(at, 8 * page);
    need(device_read_word(&t, at + 4 * page) == 2, "dropped pages are registered again");
    registered_give(t);
    unsigned char *there = mmap(NULL, 8 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(mremap(at, 8 * page, 8 * page, MREMAP_MAYMOVE | MREMAP_FIXED, there) == there, "it moves");
    pages_at(at, 8, 3);
    t = take(at, 8 * page);
    struct registered moved = take(there, 8 * page);
    need(device_read_word(&t, at) == 3 && device_read_word(&moved, there + 4 * page) == 2,
        "moved memory is registered at its new address");
    registered_give(t);
    registered_give(moved);
}
static void test_memory_may_change_while_it_is_in_use(void)
{
    make(0, 0);
    need_watching();
    unsigned char *at = pages_at(NULL, 1, 1);
    struct registered old = take(at, page);
    munmap(at, page);
    pages_at(at, 1, 2);
    registration_cache_sweep(r);
    need(regions == 1, "a registration in use stays although its memory is gone");
    struct registered new = take(at, page);
    need(device_read_word(&new, at) == 2 && device_read_word(&old, at) == 1, "but later uses do not find it");
    registered_give(old);
    need(regions == 1, "and it ends when it is given back");
    registered_give(new);
}
static unsigned char *unmapped_meanwhile;
static struct ibv_mr *register_slowly(struct ibv_pd *pd, void *at, size_t bytes, int access)
{
    struct ibv_mr *mr = register_memory(pd, at, bytes, access);
    munmap(unmapped_meanwhile, page);
    pages_at(unmapped_meanwhile, 1, 2);
    return mr;
}
static void test_memory_that_changes_while_it_is_registered_is_not_kept(void)
{
    make(0, 0);
    need_watching();
    unmapped_meanwhile = pages_at(NULL, 1, 1);
    verbs.ibv_reg_mr = register_slowly;
    registered_give(take(unmapped_meanwhile, page));
    verbs.ibv_reg_mr = register_memory;
    need(regions == 0, "a registration whose memory changed meanwhile is not kept");
    struct registered t = take(unmapped_meanwhile, page);
    need(device_read_word(&t, unmapped_meanwhile) == 2, "and not used again");
    registered_give(t);
}
/* The forked child starts threads. */
#ifndef NO_PROCESSES
static void test_a_forked_child_leaves_registrations_of_its_parent(void)
{
    int how;
    make(0, 0);
    need_watching();
    unsigned char *at = pages_at(NULL, 2, 1);
    registered_give(take(at, page));
    pid_t child = fork();
    if (child == 0) {
        registration_cache_destroy(r);
        need(regions == 1, "a child deregisters no memory of its parent");
        munmap(at, 2 * page);
        make(0, 0);
        at = pages_at(at, 2, 5);
        struct registered t = take(at, page);
        need(registration_cache_can_watch(r) && device_read_word(&t, at) == 5, "a child can create its own cache");
        registered_give(t);
        registration_cache_destroy(r);
        need(regions == 1, "and destroy it without its parent's region");
        _exit(0);
    }
    need(waitpid(child, &how, 0) == child && how == 0, "the child ended well");
    asked_since();
    registered_give(take(at, page));
    need(asked_since() == 0, "the parent's registration is used again");
}
#endif

/* ---- blocks of the arena, and permanent registrations ---- */
static void test_a_block_of_the_arena_is_registered_whole(void)
{
    enum { BYTES = 1 << 20 };
    void *first = NULL, *second = NULL;
    make(0, 0);
    need(arena_allocate(BYTES, &first) == TUTTI_OK && arena_allocate(BYTES, &second) == TUTTI_OK, "there is memory");
    struct registered t = take(first, BYTES), other = take((unsigned char *)second + 5, 7);
    need(asked_since() == 1 && t.region == other.region, "a block is registered whole, and once");
    registered_give(t);
    registered_give(other);
    need(arena_free(first) == TUTTI_OK && arena_free(second) == TUTTI_OK, "it is given back");
    registration_cache_sweep(r);
    need(regions == 1, "a spare block stays registered");
    while (arena_give_up_spare()) {}
    registration_cache_sweep(r);
    need(regions == 0, "a retired block does not");
}
static void test_a_new_block_at_an_old_address_is_registered(void)
{
    /* A block of this size is too large to be kept as a spare one. */
    enum { BYTES = 100 << 20 };
    make(0, 0);
    uintptr_t again = 0;
    for (uint64_t i = 1; i < 20; i++) {
        void *at;
        need(arena_allocate(BYTES, &at) == TUTTI_OK, "there is memory");
        again += (uintptr_t)at == again ? 0 : (uintptr_t)at - again;
        memcpy(at, &i, sizeof i);
        struct registered t = take(at, page);
        need(device_read_word(&t, at) == i, "a block at the address of an earlier one is another block");
        registered_give(t);
        need(arena_free(at) == TUTTI_OK, "it is given back");
    }
    registration_cache_sweep(r);
    need(regions == 0, "the earlier blocks are deregistered");
}
static void test_a_permanent_registration_serves_its_parts(void)
{
    struct registered kept, ring;
    make(0, 0);
    unsigned char *at = pages_at(NULL, 8, 1);
    need(registration_cache_add_permanent(r, at, 4 * page, TENSOR_ACCESS, &kept) == TUTTI_OK, "slots are registered");
    need(registration_cache_add_permanent(r, at + 4 * page, page, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
             &ring)
                == TUTTI_OK
            && last_access == (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE),
        "rings are registered as they are needed");
    asked_since();
    struct registered part = take(at + page, page), of_ring = take(at + 4 * page, page);
    need(asked_since() == 1 && part.region == kept.region,
        "a permanent registration serves its parts if the device may read it");
    registered_give(part);
    registered_give(of_ring);
    part = take(at, page);
    need(part.region == kept.region, "until it is given back");
    registered_give(kept);
    struct registered other = take(at, page);
    need(other.region != kept.region, "after that it is not found");
    registered_give(part);
    registered_give(other);
    registered_give(ring);
}

/* ---- refusals ---- */
/* Forbids userfaultfd, as the seccomp profiles of containers do. */
static void forbid_watching(void)
{
    need(forbid_calls(SYS_userfaultfd, SYS_userfaultfd, EPERM), "a process can forbid itself calls");
}
static void test_memory_that_cannot_be_watched_is_registered_for_each_use(void)
{
    forbid_watching();
    make(0, 0);
    need(!registration_cache_can_watch(r) && strstr(status_detail(), "seccomp"),
        "the reason is given if memory cannot be watched");
    unsigned char *at = pages_at(NULL, 2, 1);
    struct registered t = take(at, page), again = take(at, page);
    need(asked_since() == 2 && regions == 2, "each use registers");
    registered_give(t);
    registered_give(again);
    need(regions == 0 && registration_cache_get_counts(r).once == 2, "and no registration is kept");
    munmap(at, page);
    pages_at(at, 1, 2);
    t = take(at, page);
    need(device_read_word(&t, at) == 2, "so the device sees the new memory");
    registered_give(t);
    registration_cache_destroy(r);
    asked = 0;
    /* Blocks of the arena stay registered all the same, because the cache distinguishes them by their numbers. */
    test_a_block_of_the_arena_is_registered_whole();
}
static void test_memory_beyond_the_limit_is_refused_with_remedies(void)
{
    const struct rlimit memlock = { 64 << 10, 64 << 10 };
    struct registered t = { .region = NULL };
    make(0, 0);
    need_watching();
    limit = 4 * page;
    unsigned char *at = pages_at(NULL, 16, 1);
    registered_give(take(at, 2 * page));
    registered_give(take(at + 2 * page, 2 * page));
    registered_give(take(at + 4 * page, 3 * page));
    need(regions == 1, "unused registrations make room");
    setrlimit(RLIMIT_MEMLOCK, &memlock);
    need(registration_cache_take(r, at, 5 * page, true, &t) == TUTTI_NO_MEMORY && !t.region,
        "memory beyond the limit is refused");
    static const char *const words[] = { "made0", "may lock 64 KiB", "ulimit -l unlimited", "/etc/security/limits.conf",
        "LimitMEMLOCK=infinity", "--ulimit memlock=-1" };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) need(strstr(status_detail(), words[i]), words[i]);
    need(registration_cache_add_permanent(r, at, 5 * page, TENSOR_ACCESS, &t) == TUTTI_NO_MEMORY,
        "also for a permanent registration");
    /* The cache can go on. */
    registered_give(take(at, page));
}
static void test_a_tensor_of_a_block_beyond_the_limit_is_registered_alone(void)
{
    void *at;
    make(0, 0);
    need(arena_allocate(1 << 20, &at) == TUTTI_OK, "there is memory");
    /* Less than a block has. */
    limit = 2 << 20;
    struct registered t = take(at, 1 << 20);
    need(t.region->length < 2 << 20, "a tensor of a block that is too large is registered alone");
    registered_give(t);
    limit = 0;
    need(arena_free(at) == TUTTI_OK, "it is given back");
}
static void test_memory_of_a_device_is_registered(void)
{
    struct registered t;
    make(0, 0);
    need(registration_cache_take_dmabuf(r, 7, 4096, 100, 0x1000, &t) == TUTTI_OK, "memory of a device is registered");
    need(last_descriptor == 7 && last_access == TENSOR_ACCESS && t.region->length == 100, "as it was exported");
    registered_give(t);
    need(registration_cache_take_dmabuf(r, -1, 0, 100, 0, &t) == TUTTI_UNSUPPORTED && strstr(status_detail(), "dmabuf"),
        "a device may refuse");
    verbs.ibv_reg_dmabuf_mr = NULL;
    need(registration_cache_take_dmabuf(r, 7, 0, 100, 0, &t) == TUTTI_UNSUPPORTED
            && strstr(status_detail(), "rdma-core 34"),
        "an old library cannot");
}

/* ---- several threads ---- */
enum { THREADS = 3 };
#ifdef FEW
enum { ROUNDS = 1000 };
#else
enum { ROUNDS = 5000 };
#endif
static void *worker(void *argument)
{
    static _Atomic uint64_t words;
    unsigned seed = (unsigned)(uintptr_t)argument;
    for (int i = 0; i < ROUNDS; i++) {
        size_t count = 1 + (size_t)rand_r(&seed) % 16, at_page = (size_t)rand_r(&seed) % count;
        uint64_t word = ++words;
        unsigned char *at = pages_at(NULL, count, word);
        for (int use = rand_r(&seed) % 4; use > 0; use--) {
            struct registered t = take(at + at_page * page, (count - at_page) * page);
            need(device_read_word(&t, at + at_page * page) == word,
                "the device sees this thread's memory, not what was there before");
            registered_give(t);
        }
        if (rand_r(&seed) % 2) madvise(at, count * page, MADV_DONTNEED);
        munmap(at, count * page);
        if (rand_r(&seed) % 64 == 0) registration_cache_sweep(r);
    }
    return NULL;
}
/* The threads unmap and map all the time, and get addresses that other threads have used. */
static void test_each_thread_registers_its_own_memory(void)
{
    pthread_t threads[THREADS];
    make(256 * page, 32);
    need_watching();
    for (int i = 0; i < THREADS; i++)
        need(pthread_create(&threads[i], NULL, worker, (void *)(uintptr_t)(i + 1)) == 0, "there is a thread");
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    registration_cache_sweep(r);
    need(regions == 0 && registration_cache_get_counts(r).entries == 0 && registration_cache_get_counts(r).bytes == 0,
        "no registration is left");
}

static void run(void **state) { in_a_process((void (*)(void))*state); }
#define TEST(each) { #each, run, NULL, NULL, (void *)each }
unit_function test_verbs_registration;
int test_verbs_registration(void)
{
    page = (size_t)sysconf(_SC_PAGESIZE);
    const struct CMUnitTest tests[] = {
        TEST(test_registrations_are_used_again),
        TEST(test_entries_and_bytes_are_bounded),
        TEST(test_read_only_memory_is_registered_for_reading),
        TEST(test_memory_mapped_again_is_registered_again),
        TEST(test_dropped_and_moved_pages_are_registered_again),
        TEST(test_memory_may_change_while_it_is_in_use),
        TEST(test_memory_that_changes_while_it_is_registered_is_not_kept),
#ifndef NO_PROCESSES
        TEST(test_a_forked_child_leaves_registrations_of_its_parent),
#endif
        TEST(test_a_block_of_the_arena_is_registered_whole),
        TEST(test_a_new_block_at_an_old_address_is_registered),
        TEST(test_a_permanent_registration_serves_its_parts),
        TEST(test_memory_that_cannot_be_watched_is_registered_for_each_use),
        TEST(test_memory_beyond_the_limit_is_refused_with_remedies),
        TEST(test_a_tensor_of_a_block_beyond_the_limit_is_registered_alone),
        TEST(test_memory_of_a_device_is_registered),
        TEST(test_each_thread_registers_its_own_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
