/* What is registered when, and that it is never something else than what lies there. In the place of the library is a
   device that remembers, of each region, what the first word of each of its pages was when it was registered: as a
   device that has pinned those pages it would go on seeing them. */
#include "backend/memory/arena.h"
#include "backend/transports/verbs/memory/mappings.h"
#include "backend/transports/verbs/memory/registration.h"
#include "tests/support/forbid.h"
#include "tests/support/unit.h"
#include "tests/unit/transports/aside.h"
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { SECONDS = 600, SKIPPED = 77, TENSOR_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ };

/* ---- a device ---- */
struct region {
    struct ibv_mr mr;
    int access;
    uint64_t words[];
};
static struct ibv_device device = { .name = "made0" };
static struct ibv_context context = { .device = &device };
static struct ibv_pd domain = { .context = &context };
static _Atomic int regions, asked, last_access, last_descriptor;
static _Atomic size_t registered_bytes, limit;          /* limit: as RLIMIT_MEMLOCK; 0: none */
static void *read_only;                                 /* memory at which this device refuses to write */
static size_t page;
static const char *device_name(struct ibv_device *d) { return d->name; }
static struct ibv_mr *register_memory(struct ibv_pd *pd, void *at, size_t bytes, int access)
{
    size_t pages = bytes / page;
    asked++;
    last_access = access;
    if (at == read_only && access & IBV_ACCESS_LOCAL_WRITE) { errno = EFAULT; return NULL; }
    if (limit && registered_bytes + bytes > limit) { errno = ENOMEM; return NULL; }
    struct region *r = malloc(sizeof *r + pages * sizeof *r->words);
    if (!r) { errno = ENOMEM; return NULL; }
    r->access = access;
    r->mr = (struct ibv_mr){ .context = pd->context, .pd = pd, .addr = at, .length = bytes };
    for (size_t i = 0; i < pages; i++) r->words[i] = *(const volatile uint64_t *)((unsigned char *)at + i * page);
    regions++;
    registered_bytes += bytes;
    return &r->mr;
}
static int deregister(struct ibv_mr *mr)
{
    regions--;
    registered_bytes -= mr->length;
    free(mr);
    return 0;
}
static struct ibv_mr *register_dmabuf(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int descriptor,
    int access)
{
    (void)offset;
    if (descriptor < 0) { errno = EBADF; return NULL; }
    last_descriptor = descriptor;
    last_access = access;
    struct region *r = malloc(sizeof *r);
    r->mr = (struct ibv_mr){ .context = pd->context, .pd = pd, .addr = (void *)(uintptr_t)iova, .length = bytes };
    regions++;
    registered_bytes += bytes;
    return &r->mr;
}
static uint64_t seen(const struct registered *t, const void *at)       /* by the device, at an address of a page */
{
    const struct region *r = (const struct region *)(const void *)t->region;
    return r->words[((uintptr_t)at - (uintptr_t)t->region->addr) / page];
}

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
            .ibv_dereg_mr = deregister,
            .ibv_reg_dmabuf_mr = register_dmabuf };
        each();
        registration_cache_destroy(r);
        need(regions == 0, "nothing is left registered");
        _exit(0);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    if (WIFEXITED(how) && WEXITSTATUS(how) == SKIPPED) skip();
    assert_int_equal(how, 0);
}
static unsigned char *pages_at(void *at, size_t count, uint64_t word)  /* mapped, with that word in each */
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0);
    if (!at) at = aside(count * page);
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

/* ---- what is kept ---- */
static void keeps(void)
{
    make(0, 0);
    need_watching();
    unsigned char *at = pages_at(NULL, 4, 1);
    struct registered first = take(at + 100, page), second = take(at + 8, 3000), third = take(at + 2 * page, 1);
    need(asked_since() == 2 && regions == 2, "a part of what is registered, or on its pages, is not registered again");
    need(first.region == second.region && first.region != third.region, "each serves its own");
    need(((struct region *)(void *)first.region)->access == TENSOR_ACCESS, "peers may read it and not write it");
    registered_give(first);
    registered_give(second);
    registered_give(third);
    need(regions == 2, "and stays when it is given back");
    registered_give(take(at, 2 * page));
    need(asked_since() == 0, "until it is wanted again");
    struct registration_counts counts = registration_cache_get_counts(r);
    need(counts.hits == 2 && counts.misses == 2 && counts.entries == 2 && counts.bytes == 3 * page, "that is counted");
}
static void keeps_bounded(void)
{
    make(8 * page, 3);
    need_watching();
    unsigned char *at = pages_at(NULL, 64, 1);
    struct registered used = take(at, 1);
    registered_give(take(at + 2 * page, 1));
    registered_give(take(at + 4 * page, 1));
    registered_give(take(at + 2 * page, 1));
    registered_give(take(at + 6 * page, 1)); /* the fourth: what was at 4 goes */
    need(regions == 3, "entries are bounded");
    asked_since();
    registered_give(take(at, 1));
    registered_give(take(at + 2 * page, 1));
    need(asked_since() == 0, "what was used later, or is in use, stays");
    registered_give(take(at + 4 * page, 1));
    need(asked_since() == 1, "the longest unused has gone");
    registered_give(take(at + 16 * page, 7 * page));
    need(regions == 2 && registered_bytes == 8 * page, "bytes are bounded, and what is in use stays");
    registered_give(take(at + 32 * page, 9 * page));
    need(regions == 2 && registration_cache_get_counts(r).once == 1, "what is larger than all that is registered once");
    registered_give(used);
}
static void reads_only(void)
{
    make(0, 0);
    need_watching();
    unsigned char *at = pages_at(NULL, 1, 1);
    struct registered t;
    read_only = at;
    need(registration_cache_take(r, at, page, false, &t) == TUTTI_OK && last_access == IBV_ACCESS_REMOTE_READ,
        "what this process may not write can be read");
    registered_give(t);
    need(registration_cache_take(r, at, page, true, &t) == TUTTI_INVALID_ARGUMENT, "and not be written");
    need(strstr(status_detail(), "made0") != NULL, "which the text says");
    asked_since();
    need(registration_cache_take(r, at, page, false, &t) == TUTTI_OK && asked_since() == 0, "reading goes on");
    registered_give(t);
}

/* ---- what is something else now ---- */
static void maps_anew(void)
{
    make(0, 0);
    need_watching();
    unsigned char *at = pages_at(NULL, 4, 1);
    for (uint64_t word = 1; word < 300; word++) {
        struct registered t = take(at, 4 * page);
        need(seen(&t, at + page) == word, "the device sees what lies there");
        registered_give(t);
        munmap(at, 4 * page);
        pages_at(at, 4, word + 1);
    }
    registration_cache_sweep(r);
    need(regions == 0 && registration_cache_get_counts(r).entries == 0, "of what is gone nothing stays registered");
}
static void drops_pages(void)
{
    make(0, 0);
    need_watching();
    unsigned char *at = pages_at(NULL, 8, 1);
    const uint64_t two = 2;
    registered_give(take(at, 8 * page));
    madvise(at + 4 * page, page, MADV_DONTNEED);
    memcpy(at + 4 * page, &two, sizeof two);
    struct registered t = take(at, 8 * page);
    need(seen(&t, at + 4 * page) == 2, "dropped pages are registered anew");
    registered_give(t);
    unsigned char *there = mmap(NULL, 8 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(mremap(at, 8 * page, 8 * page, MREMAP_MAYMOVE | MREMAP_FIXED, there) == there, "it moves");
    pages_at(at, 8, 3);
    t = take(at, 8 * page);
    struct registered moved = take(there, 8 * page);
    need(seen(&t, at) == 3 && seen(&moved, there + 4 * page) == 2, "what has moved is registered where it is");
    registered_give(t);
    registered_give(moved);
}
static void changes_in_use(void)
{
    make(0, 0);
    need_watching();
    unsigned char *at = pages_at(NULL, 1, 1);
    struct registered old = take(at, page);
    munmap(at, page);
    pages_at(at, 1, 2);
    registration_cache_sweep(r);
    need(regions == 1, "what is in use stays registered though it is gone");
    struct registered new = take(at, page);
    need(seen(&new, at) == 2 && seen(&old, at) == 1, "but nobody finds it any more");
    registered_give(old);
    need(regions == 1, "and it goes when it is given back");
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
static void changes_while_registered(void)
{
    make(0, 0);
    need_watching();
    unmapped_meanwhile = pages_at(NULL, 1, 1);
    verbs.ibv_reg_mr = register_slowly;
    registered_give(take(unmapped_meanwhile, page));
    verbs.ibv_reg_mr = register_memory;
    need(regions == 0, "what changed meanwhile is not kept");
    struct registered t = take(unmapped_meanwhile, page);
    need(seen(&t, unmapped_meanwhile) == 2, "and not found");
    registered_give(t);
}
#ifndef NO_PROCESSES /* a child that starts threads */
static void forks(void)
{
    int how;
    make(0, 0);
    need_watching();
    unsigned char *at = pages_at(NULL, 2, 1);
    registered_give(take(at, page));
    pid_t child = fork();
    if (child == 0) {
        registration_cache_destroy(r);
        need(regions == 1, "a child deregisters nothing of its parent's");
        munmap(at, 2 * page);
        make(0, 0);
        at = pages_at(at, 2, 5);
        struct registered t = take(at, page);
        need(registration_cache_can_watch(r) && seen(&t, at) == 5, "and may have a device of its own");
        registered_give(t);
        registration_cache_destroy(r);
        need(regions == 1, "which it leaves as it should");
        _exit(0);
    }
    need(waitpid(child, &how, 0) == child && how == 0, "the child ended well");
    asked_since();
    registered_give(take(at, page));
    need(asked_since() == 0, "the parent's stays as it was");
}
#endif

/* ---- what is registered for good ---- */
static void of_the_arena(void)
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
    need(regions == 1, "the spare block is a block still");
    while (arena_give_up_spare()) {}
    registration_cache_sweep(r);
    need(regions == 0, "of a block that is no more nothing stays registered");
}
static void reuses_the_arena(void)
{
    enum { BYTES = 100 << 20 };                         /* too large to be spare */
    make(0, 0);
    uintptr_t again = 0;
    for (uint64_t i = 1; i < 20; i++) {
        void *at;
        need(arena_allocate(BYTES, &at) == TUTTI_OK, "there is memory");
        again += (uintptr_t)at == again ? 0 : (uintptr_t)at - again;
        memcpy(at, &i, sizeof i);
        struct registered t = take(at, page);
        need(seen(&t, at) == i, "a block at the address of an earlier one is another block");
        registered_give(t);
        need(arena_free(at) == TUTTI_OK, "it is given back");
    }
    registration_cache_sweep(r);
    need(regions == 0, "and the earlier ones are let go of");
}
static void registered_permanently(void)
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
    struct registered part = take(at + page, page), anew = take(at + 4 * page, page);
    need(asked_since() == 1 && part.region == kept.region,
        "slots serve who uses a part; a ring that may not be read not");
    registered_give(part);
    registered_give(anew);
    part = take(at, page);
    need(part.region == kept.region, "for as long as they are");
    registered_give(kept);
    struct registered other = take(at, page);
    need(other.region != kept.region, "what is given back is found no more");
    registered_give(part);
    registered_give(other);
    registered_give(ring);
}

/* ---- refusals ---- */
static void forbid_watching(void)                       /* as seccomp profiles of containers do */
{
    need(forbid_calls(SYS_userfaultfd, SYS_userfaultfd, EPERM), "a process can forbid itself calls");
}
static void once_each(void)
{
    forbid_watching();
    make(0, 0);
    need(!registration_cache_can_watch(r) && strstr(status_detail(), "seccomp"),
        "where nothing can be watched it is said why");
    unsigned char *at = pages_at(NULL, 2, 1);
    struct registered t = take(at, page), again = take(at, page);
    need(asked_since() == 2 && regions == 2, "each use registers");
    registered_give(t);
    registered_give(again);
    need(regions == 0 && registration_cache_get_counts(r).once == 2, "and nothing is kept");
    munmap(at, page);
    pages_at(at, 1, 2);
    t = take(at, page);
    need(seen(&t, at) == 2, "so it is right");
    registered_give(t);
    registration_cache_destroy(r);
    asked = 0;
    of_the_arena(); /* blocks are kept all the same: their numbers tell */
}
static void too_much(void)
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
    need(regions == 1, "what is unused makes room for what is needed");
    setrlimit(RLIMIT_MEMLOCK, &memlock);
    need(registration_cache_take(r, at, 5 * page, true, &t) == TUTTI_NO_MEMORY && !t.region, "too much is refused");
    static const char *const words[] = { "made0", "may lock 64 KiB", "ulimit -l unlimited", "/etc/security/limits.conf",
        "LimitMEMLOCK=infinity", "--ulimit memlock=-1" };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) need(strstr(status_detail(), words[i]), words[i]);
    need(registration_cache_add_permanent(r, at, 5 * page, TENSOR_ACCESS, &t) == TUTTI_NO_MEMORY, "for good, too");
    registered_give(take(at, page)); /* and all goes on */
}
static void too_large_a_block(void)
{
    void *at;
    make(0, 0);
    need(arena_allocate(1 << 20, &at) == TUTTI_OK, "there is memory");
    limit = 2 << 20; /* less than a block */
    struct registered t = take(at, 1 << 20);
    need(t.region->length < 2 << 20, "a tensor of a block that is too large is registered alone");
    registered_give(t);
    limit = 0;
    need(arena_free(at) == TUTTI_OK, "it is given back");
}
static void of_a_device(void)
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
            need(seen(&t, at + at_page * page) == word,
                "the device sees this thread's memory, not what was there before");
            registered_give(t);
        }
        if (rand_r(&seed) % 2) madvise(at, count * page, MADV_DONTNEED);
        munmap(at, count * page);
        if (rand_r(&seed) % 64 == 0) registration_cache_sweep(r);
    }
    return NULL;
}
/* They get addresses from each other all the time. */
static void many(void)
{
    pthread_t threads[THREADS];
    make(256 * page, 32);
    need_watching();
    for (int i = 0; i < THREADS; i++)
        need(pthread_create(&threads[i], NULL, worker, (void *)(uintptr_t)(i + 1)) == 0, "there is a thread");
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    registration_cache_sweep(r);
    need(regions == 0 && registration_cache_get_counts(r).entries == 0 && registration_cache_get_counts(r).bytes == 0,
        "all is gone");
}

static void run(void **state) { in_a_process((void (*)(void))*state); }
#define TEST(each) { #each, run, NULL, NULL, (void *)each }
unit_function test_verbs_registration;
int test_verbs_registration(void)
{
    page = (size_t)sysconf(_SC_PAGESIZE);
    const struct CMUnitTest tests[] = {
        TEST(keeps),
        TEST(keeps_bounded),
        TEST(reads_only),
        TEST(maps_anew),
        TEST(drops_pages),
        TEST(changes_in_use),
        TEST(changes_while_registered),
#ifndef NO_PROCESSES
        TEST(forks),
#endif
        TEST(of_the_arena),
        TEST(reuses_the_arena),
        TEST(registered_permanently),
        TEST(once_each),
        TEST(too_much),
        TEST(too_large_a_block),
        TEST(of_a_device),
        TEST(many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
