/* A segment is shared by processes, sealed and without a name, and takes memory only for pages that a rank reserves. A
   wrong nonce, size or seal is an error, and so is a lack of memory. The file replaces the system calls that a test
   makes fail. */
#include "backend/base/status.h"
#include "backend/host/segment.h"
#include "tests/support/failing_calls.h"
#include "tests/support/unit.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { RANKS = 3, SLOT_BYTES = 1 << 20, PAIR_BYTES = 5000 };
static const struct segment_shape shape = { RANKS, RANKS, SLOT_BYTES, PAIR_BYTES, 0 };
static const unsigned char nonce[16] = "0123456789abcde";

/* ---- system calls that a test makes fail ---- */
static int madvise_error;
int madvise(void *at, size_t bytes, int advice)
{
    if (madvise_error) { errno = madvise_error; return -1; }
    /* 23 is MADV_POPULATE_WRITE. */
    if (machine_is_full && advice == 23) { errno = EFAULT; return -1; }
    return (int)syscall(SYS_madvise, at, bytes, advice);
}

/* ---- helpers ---- */
static int count_entries(const char *folder)
{
    int count = 0;
    DIR *open = opendir(folder);
    if (!open) return -1;
    while (readdir(open)) count++;
    closedir(open);
    return count;
}
static int create(struct segment *out)
{
    int descriptor = -1;
    assert_int_equal(segment_create(out, &shape, nonce, &descriptor), TUTTI_OK);
    assert_true(descriptor >= 0);
    return descriptor;
}
static size_t resident_bytes(int descriptor)
{
    struct stat file;
    assert_int_equal(fstat(descriptor, &file), 0);
    return (size_t)file.st_blocks * 512;
}
static int exit_code(pid_t child)
{
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* ---- tests ---- */
static void test_segment_is_shared_with_another_process(void **state)
{
    struct segment mine, theirs;
    int descriptor = create(&mine);
    pid_t child = fork();
    if (child == 0) {
        /* The child does not inherit the mapping `mine`, and other memory may lie at its address. */
        if (segment_attach(&theirs, &shape, nonce, descriptor) != TUTTI_OK) _exit(1);
        segment_slots(&theirs, 2)[SLOT_BYTES - 1] = 42;
        segment_pair(&theirs, 2, 1)[PAIR_BYTES - 1] = 43;
        segment_counts(&theirs, 2, 1, 1)[RANKS - 1] = 44;
        atomic_store(&theirs.controls[2].joined, 1);
        _exit(0);
    }
    assert_int_equal(exit_code(child), 0);
    assert_int_equal(segment_slots(&mine, 2)[SLOT_BYTES - 1], 42);
    assert_int_equal(segment_pair(&mine, 2, 1)[PAIR_BYTES - 1], 43);
    assert_int_equal(segment_counts(&mine, 2, 1, 1)[RANKS - 1], 44);
    assert_int_equal(atomic_load(&mine.controls[2].joined), 1);
    close(descriptor);
    segment_detach(&mine);
    (void)state;
}
static void test_regions_do_not_overlap_and_are_aligned(void **state)
{
    struct segment s;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    close(create(&s));
    assert_int_equal((uintptr_t)s.controls % 128, 0);
    assert_int_equal((uintptr_t)&s.controls[1].bell % 128, 0);
    assert_int_equal((uintptr_t)segment_slots(&s, 1) % page, 0);
    assert_int_equal((uintptr_t)segment_pair(&s, 1, 2) % page, 0);
    assert_true((unsigned char *)(s.failure + 1) <= (unsigned char *)s.controls);
    assert_true((void *)(s.controls + RANKS) <= (void *)s.counts);
    assert_true((void *)(segment_counts(&s, RANKS - 1, 1, 1) + RANKS) <= (void *)s.slots);
    assert_true(segment_slots(&s, RANKS - 1) + SLOT_BYTES <= s.pairs);
    assert_true(segment_pair(&s, RANKS - 1, RANKS - 1) + PAIR_BYTES <= s.base + s.bytes);
    segment_detach(&s);
    (void)state;
}
static void test_segment_begins_as_zeros(void **state)
{
    struct segment s;
    close(create(&s));
    for (unsigned char *at = (unsigned char *)s.controls; at < s.base + s.bytes; at++) assert_int_equal(*at, 0);
    segment_detach(&s);
    (void)state;
}
static void test_wrong_nonce_is_refused(void **state)
{
    struct segment mine, theirs = { 0 };
    int descriptor = create(&mine);
    const unsigned char *wrong = (const unsigned char *)"another nonce..";
    assert_int_equal(segment_attach(&theirs, &shape, wrong, descriptor), TUTTI_SYSTEM);
    assert_non_null(strstr(status_detail(), "does not belong to this group"));
    assert_null(theirs.base);
    /* segment_attach has closed the descriptor. */
    assert_int_equal(fcntl(descriptor, F_GETFD), -1);
    segment_detach(&mine);
    (void)state;
}
static void test_wrong_size_is_refused(void **state)
{
    struct segment mine, theirs;
    int descriptor = create(&mine);
    struct segment_shape larger = { RANKS + 1, RANKS + 1, SLOT_BYTES, PAIR_BYTES, 0 };
    assert_int_equal(segment_attach(&theirs, &larger, nonce, descriptor), TUTTI_SYSTEM);
    assert_non_null(strstr(status_detail(), "bytes and should be"));
    segment_detach(&mine);
    (void)state;
}
static void test_unsealed_memory_is_refused(void **state)
{
    struct segment mine, theirs;
    close(create(&mine));
    int descriptor = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(descriptor, (off_t)mine.bytes), 0);
    assert_int_equal(segment_attach(&theirs, &shape, nonce, descriptor), TUTTI_SYSTEM);
    assert_non_null(strstr(status_detail(), "not sealed"));
    segment_detach(&mine);
    (void)state;
}
static void test_segment_cannot_be_shrunk_nor_grown(void **state)
{
    struct segment mine;
    int descriptor = create(&mine);
    assert_int_equal(ftruncate(descriptor, 4096), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(ftruncate(descriptor, (off_t)mine.bytes + 4096), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(fcntl(descriptor, F_ADD_SEALS, F_SEAL_WRITE), -1);
    close(descriptor);
    segment_detach(&mine);
    (void)state;
}
static void test_slots_take_memory_only_when_reserved(void **state)
{
    struct segment mine;
    int descriptor = create(&mine);
    size_t before = resident_bytes(descriptor);
    assert_true(before < SLOT_BYTES);
    assert_int_equal(segment_reserve(&mine, segment_slots(&mine, 1) + 100, SLOT_BYTES / 2, "slots"), TUTTI_OK);
    size_t after = resident_bytes(descriptor);
    assert_true(after >= before + SLOT_BYTES / 2 && after <= before + SLOT_BYTES / 2 + 2 * 65536);
    unsigned char *slots = segment_slots(&mine, 1);
    memset(slots + 100, 7, SLOT_BYTES / 2);
    segment_give_back(&mine, slots + 100, SLOT_BYTES / 2);
    /* The first and the last page lie only in part in the range, and stay. */
    assert_true(resident_bytes(descriptor) <= before + 2 * 65536);
    assert_int_equal(slots[100], 7);
    assert_int_equal(slots[8192], 0);
    close(descriptor);
    segment_detach(&mine);
    (void)state;
}
static void test_resident_bytes_grow_in_proportion_to_the_ranks(void **state)
{
    enum { MANY = 128, ACCOUNT = 2048, DECLARED = DECLARATIONS * sizeof(struct declaration) };
    enum {
        EACH = TRACKS * sizeof(struct line) + sizeof(struct control) + DECLARED + sizeof(struct join_info) + ACCOUNT
    };
    static const struct segment_shape many = { MANY, MANY, SLOT_BYTES, PAIR_BYTES, ACCOUNT };
    struct segment s;
    int descriptor = -1;
    assert_int_equal(segment_create(&s, &many, nonce, &descriptor), TUTTI_OK);
    size_t before = resident_bytes(descriptor);
    assert_true(before <= MANY * EACH + 3 * 4096);
    for (int r = 0; r < MANY; r++) {
        uint64_t *counts = segment_counts(&s, r, 0, 0);
        assert_int_equal(segment_reserve(&s, counts, segment_counts_bytes(&s), "counts"), TUTTI_OK);
        assert_true(counts + segment_counts_bytes(&s) / sizeof *counts == segment_counts(&s, r + 1, 0, 0));
    }
    size_t after = resident_bytes(descriptor);
    assert_true(after - before >= MANY * segment_counts_bytes(&s));
    close(descriptor);
    segment_detach(&s);
    (void)state;
}
static void test_full_machine_is_an_error_that_names_the_bytes(void **state)
{
    struct segment mine, none = { 0 };
    int descriptor = create(&mine), other = -7;
    madvise_error = EFAULT;
    assert_int_equal(segment_reserve(&mine, mine.slots, SLOT_BYTES, "staging slots"), TUTTI_NO_MEMORY);
    assert_non_null(strstr(status_detail(), "staging slots: 1048576 bytes"));
    madvise_error = 0;
    fallocate_error = ENOSPC;
    assert_int_equal(segment_create(&none, &shape, nonce, &other), TUTTI_NO_MEMORY);
    assert_non_null(strstr(status_detail(), "bytes of shared memory are not available"));
    fallocate_error = 0;
    assert_null(none.base);
    assert_int_equal(other, -7);
    close(descriptor);
    segment_detach(&mine);
    (void)state;
}
/* Makes the arena keep one spare block. */
static void keep_a_spare_block(void)
{
    void *at;
    assert_int_equal(arena_allocate(1 << 20, &at), TUTTI_OK);
    assert_int_equal(arena_free(at), TUTTI_OK);
    assert_int_equal(arena_get_size().blocks, 1);
}
static void test_spare_block_of_the_arena_is_freed_before_a_call_fails(void **state)
{
    struct segment mine;
    keep_a_spare_block();
    machine_is_full = true;
    close(create(&mine));
    assert_int_equal(arena_get_size().blocks, 0);
    keep_a_spare_block();
    machine_is_full = true;
    assert_int_equal(segment_reserve(&mine, mine.slots, SLOT_BYTES, "staging slots"), TUTTI_OK);
    assert_int_equal(arena_get_size().blocks, 0);
    segment_detach(&mine);
    (void)state;
}
static void test_old_kernel_allocates_all_pages_at_once(void **state)
{
    struct segment mine;
    madvise_error = EINVAL;
    int descriptor = create(&mine);
    assert_true(resident_bytes(descriptor) >= mine.bytes);
    assert_int_equal(segment_reserve(&mine, mine.slots, RANKS * SLOT_BYTES, "slots"), TUTTI_OK);
    madvise_error = 0;
    close(descriptor);
    segment_detach(&mine);
    (void)state;
}
static void test_error_names_the_refused_memfd_create(void **state)
{
    struct segment none;
    int descriptor;
    memfd_error = EPERM;
    assert_int_equal(segment_create(&none, &shape, nonce, &descriptor), TUTTI_SYSTEM);
    memfd_error = 0;
    assert_non_null(strstr(status_detail(), "memfd_create"));
    assert_non_null(strstr(status_detail(), "Operation not permitted"));
    (void)state;
}
static void test_file_limit_is_an_error_not_a_signal(void **state)
{
    pid_t child = fork();
    if (child == 0) {
        struct segment none;
        int descriptor;
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 65536, 65536 });
        if (segment_create(&none, &shape, nonce, &descriptor) != TUTTI_SYSTEM) _exit(1);
        _exit(strstr(status_detail(), "ulimit -f") ? 0 : 2);
    }
    assert_int_equal(exit_code(child), 0);
    (void)state;
}
static void test_sizes_that_do_not_fit_are_refused(void **state)
{
    struct segment none;
    int descriptor;
    static const size_t sizes[] = { SIZE_MAX, SIZE_MAX - 4096, SIZE_MAX / RANKS, SIZE_MAX / 2 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct segment_shape slots = { RANKS, RANKS, sizes[i], PAIR_BYTES, 0 };
        struct segment_shape pairs = { RANKS, RANKS, SLOT_BYTES, sizes[i], 0 };
        assert_int_equal(segment_create(&none, &slots, nonce, &descriptor), TUTTI_NO_MEMORY);
        assert_int_equal(segment_create(&none, &pairs, nonce, &descriptor), TUTTI_NO_MEMORY);
    }
    (void)state;
}
/* True if the kernel lists the flag for the mapping at `at`: " dc" keeps it out of forked children, " dd" out of core
   files. */
static bool has_flag(const void *at, const char *flag)
{
    char line[512];
    bool inside = false, found = false;
    FILE *maps = fopen("/proc/self/smaps", "r");
    while (fgets(line, sizeof line, maps)) {
        unsigned long first, end;
        if (sscanf(line, "%lx-%lx ", &first, &end) == 2) inside = (uintptr_t)at >= first && (uintptr_t)at < end;
        if (inside && strncmp(line, "VmFlags:", 8) == 0) found = strstr(line, flag) != NULL;
    }
    fclose(maps);
    return found;
}
static void test_segment_is_kept_from_children_and_core_files(void **state)
{
    struct segment mine, theirs;
    int descriptor = create(&mine);
    assert_int_equal(segment_attach(&theirs, &shape, nonce, descriptor), TUTTI_OK);
    const struct segment *both[] = { &mine, &theirs };
    for (int i = 0; i < 2; i++) {
        assert_true(has_flag(both[i]->base, " dc") && has_flag(both[i]->base, " dd"));
        assert_true(has_flag(both[i]->base + both[i]->bytes - 1, " dc"));
    }
    segment_detach(&theirs);
    segment_detach(&mine);
    (void)state;
}
static void test_segment_leaves_no_name_and_no_descriptor(void **state)
{
    int names = count_entries("/dev/shm"), open = count_entries("/proc/self/fd");
    for (int i = 0; i < 20; i++) {
        struct segment mine, theirs;
        int descriptor = create(&mine);
        assert_int_equal(count_entries("/dev/shm"), names);
        assert_int_equal(segment_attach(&theirs, &shape, nonce, descriptor), TUTTI_OK);
        segment_detach(&theirs);
        segment_detach(&mine);
    }
    assert_int_equal(count_entries("/proc/self/fd"), open);
    segment_detach(NULL);
    segment_detach(&(struct segment){ 0 });
    (void)state;
}
unit_function test_segment;
int test_segment(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_segment_is_shared_with_another_process),
        cmocka_unit_test(test_regions_do_not_overlap_and_are_aligned),
        cmocka_unit_test(test_segment_begins_as_zeros),
        cmocka_unit_test(test_wrong_nonce_is_refused),
        cmocka_unit_test(test_wrong_size_is_refused),
        cmocka_unit_test(test_unsealed_memory_is_refused),
        cmocka_unit_test(test_segment_cannot_be_shrunk_nor_grown),
        cmocka_unit_test(test_slots_take_memory_only_when_reserved),
        cmocka_unit_test(test_resident_bytes_grow_in_proportion_to_the_ranks),
        cmocka_unit_test(test_full_machine_is_an_error_that_names_the_bytes),
        cmocka_unit_test(test_spare_block_of_the_arena_is_freed_before_a_call_fails),
        cmocka_unit_test(test_old_kernel_allocates_all_pages_at_once),
        cmocka_unit_test(test_error_names_the_refused_memfd_create),
        cmocka_unit_test(test_file_limit_is_an_error_not_a_signal),
        cmocka_unit_test(test_sizes_that_do_not_fit_are_refused),
        cmocka_unit_test(test_segment_is_kept_from_children_and_core_files),
        cmocka_unit_test(test_segment_leaves_no_name_and_no_descriptor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
