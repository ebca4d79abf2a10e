/* The arena allocates and finds memory, frees blocks that are no longer used, and is private in a forked child. Every
   shortage is an error with a text. Where a test needs a peer, the process attaches its own blocks. */
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/memory/arena.h"
#include "backend/memory/memfd.h"
#include "tests/support/failing_calls.h"
#include "tests/support/unit.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { MIB = 1 << 20 };

/* mmap of shared memory fails until some memory is unmapped. */
static bool no_addresses;
void *mmap(void *at, size_t bytes, int protection, int flags, int descriptor, off_t offset)
{
    if (no_addresses && descriptor >= 0 && flags == MAP_SHARED) { errno = ENOMEM; return MAP_FAILED; }
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, descriptor, offset);
}
int munmap(void *at, size_t bytes)
{
    no_addresses = false;
    return (int)syscall(SYS_munmap, at, bytes);
}
static int open_files(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}
static void *allocate(size_t bytes)
{
    void *at = NULL;
    assert_int_equal(arena_allocate(bytes, &at), TUTTI_OK);
    assert_non_null(at);
    return at;
}

/* ---- locations ---- */
static void test_location_leads_back_to_its_address(void **state)
{
    struct location location;
    static char outside;
    (void)state;
    assert_false(arena_find(&outside, 1, &location));
    unsigned char *small = allocate(100), *large = allocate(3 * MIB + 1), *huge = allocate(40 * MIB);
    assert_int_equal((uintptr_t)small % 64, 0);
    assert_int_equal((uintptr_t)large % page_bytes(), 0);
    assert_int_equal((uintptr_t)huge % page_bytes(), 0);
    unsigned char *all[] = { small, large + 12345, huge + 40 * MIB - 1 };
    for (int i = 0; i < 3; i++) {
        assert_true(arena_find(all[i], 1, &location));
        assert_ptr_equal(arena_location_address(location, 1), all[i]);
    }
    /* These bytes begin in a block, but end outside of it. */
    assert_false(arena_find(huge, 1000 * (size_t)MIB, &location));
    assert_false(arena_find(&outside, 1, &location));
    assert_true(arena_find(huge, 1, &location));
    assert_null(arena_location_address((struct location){ location.block, 0 }, 1000 * (uint64_t)MIB));
    assert_null(arena_location_address((struct location){ location.block, UINT64_MAX }, 1));
    assert_null(arena_location_address((struct location){ location.block + 100, 0 }, 1));
    assert_null(arena_location_address((struct location){ 0, 0 }, 0));
    arena_free(small);
    arena_free(large);
    arena_free(huge);
}
static void test_allocation_of_0_bytes_and_free_of_null_succeed(void **state)
{
    void *at = NULL, *other = NULL;
    (void)state;
    assert_int_equal(arena_allocate(0, &at), TUTTI_OK);
    assert_int_equal(arena_allocate(0, &other), TUTTI_OK);
    assert_true(at && other && at != other);
    arena_free(at);
    arena_free(other);
    assert_int_equal(arena_free(NULL), TUTTI_OK);
}
static void test_free_refuses_an_address_that_was_not_allocated(void **state)
{
    static char outside;
    unsigned char *at = allocate(1000);
    (void)state;
    assert_int_equal(arena_free(&outside), TUTTI_INVALID_ARGUMENT);
    assert_non_null(strstr(status_detail(), "tutti_mem_alloc did not return it"));
    assert_int_equal(arena_free(at + 64), TUTTI_INVALID_ARGUMENT);
    assert_int_equal(arena_free(at), TUTTI_OK);
    assert_int_equal(arena_free(at), TUTTI_INVALID_ARGUMENT);
}

static void test_block_is_the_whole_mapping_of_a_tensor(void **state)
{
    struct location at;
    unsigned char *tensor = allocate(3 * MIB);
    (void)state;
    assert_true(arena_find(tensor, 3 * MIB, &at));
    struct arena_block whole = arena_block(at.block);
    assert_ptr_equal((unsigned char *)whole.base + at.offset, tensor);
    assert_true(at.offset + 3 * MIB <= whole.bytes);
    assert_ptr_equal(arena_location_address((struct location){ at.block, 0 }, whole.bytes), whole.base);
    assert_null(arena_location_address((struct location){ at.block, 0 }, whole.bytes + 1));
    assert_null(arena_block(0).base);
    assert_null(arena_block(at.block + 1000000).base);
    assert_int_equal(arena_free(tensor), TUTTI_OK);
}

/* ---- growing and giving back ---- */
static void test_arena_does_not_grow_over_100000_cycles(void **state)
{
    enum { PARTS = 200, CYCLES = 100000 };
    static unsigned char *part[PARTS];
    unsigned seed = 11;
    struct arena_size half = { 0 };
    int files = 0;
    (void)state;
    /* Each turn either allocates or frees. */
    for (int turn = 0; turn < 2 * CYCLES; turn++) {
        int i = rand_r(&seed) % PARTS;
        if (part[i]) {
            assert_int_equal(*part[i], i);
            assert_int_equal(arena_free(part[i]), TUTTI_OK);
            part[i] = NULL;
        } else {
            part[i] = allocate((size_t)rand_r(&seed) % ((size_t)1 << (rand_r(&seed) % 20)) + 1);
            *part[i] = (unsigned char)i;
        }
        if (turn == CYCLES) {
            half = arena_get_size();
            files = open_files();
        }
    }
    struct arena_size end = arena_get_size();
    assert_true(end.bytes <= half.bytes + 16 * MIB && end.blocks <= half.blocks + 1);
    assert_true(open_files() <= files + 1);
    for (int i = 0; i < PARTS; i++) arena_free(part[i]);
    assert_true(arena_get_size().blocks <= 1);
}
static void test_free_blocks_are_unmapped_except_one_spare(void **state)
{
    enum { COUNT = 6 };
    void *part[COUNT];
    (void)state;
    for (int i = 0; i < COUNT; i++) part[i] = allocate((size_t)(20 + 8 * i) * MIB);
    assert_true(arena_get_size().blocks >= COUNT);
    for (int i = 0; i < COUNT; i++) arena_free(part[i]);
    assert_int_equal(arena_get_size().blocks, 1);
    /* The largest block, of 60 MiB, is kept as the spare. */
    assert_true(arena_get_size().bytes < (size_t)62 * MIB);
    int files = open_files();
    void *again = allocate(60 * MIB);
    assert_int_equal(open_files(), files);
    arena_free(again);
}
static void test_spare_block_has_at_most_64_mib(void **state)
{
    (void)state;
    arena_give_up_spare();
    arena_free(allocate(64 * MIB));
    assert_int_equal(arena_get_size().blocks, 1);
    arena_free(allocate(65 * MIB));
    assert_true(arena_get_size().bytes <= 64 * MIB + page_bytes());
    assert_true(arena_give_up_spare() && !arena_give_up_spare());
    arena_free(allocate(65 * MIB));
    assert_int_equal(arena_get_size().blocks, 0);
}
/* A small tensor that is freed and allocated repeatedly stays in one block, however much memory is allocated
   besides. */
static void test_repeated_small_allocation_stays_in_its_block(void **state)
{
    struct location locations[2];
    void *much = allocate(300 * MIB);
    (void)state;
    for (int i = 0; i < 2; i++) {
        void *small = allocate(MIB);
        assert_true(arena_find(small, MIB, &locations[i]));
        arena_free(small);
    }
    assert_int_equal(locations[0].block, locations[1].block);
    arena_free(much);
    arena_give_up_spare();
}
/* A freed block returns its memory to the kernel, also if a peer still maps it. */
static void test_freed_block_returns_its_memory_while_a_peer_maps_it(void **state)
{
    struct location location;
    struct stat file;
    size_t bytes;
    void *theirs, *mine = allocate(100 * MIB);
    (void)state;
    assert_true(arena_find(mine, 100 * MIB, &location));
    int descriptor = arena_copy_descriptor(location.block, &bytes),
        second = arena_copy_descriptor(location.block, &bytes);
    assert_true(descriptor >= 0 && second >= 0 && bytes >= 100 * MIB);
    assert_int_equal(arena_attach(descriptor, location.block, bytes, "process 7's", &theirs), TUTTI_OK);
    memcpy(mine, "hello", 6);
    assert_string_equal((char *)theirs + location.offset, "hello");
    assert_false(arena_block_is_retired(theirs));
    arena_free(mine);
    assert_true(arena_block_is_retired(theirs));
    assert_int_equal(fstat(second, &file), 0);
    assert_true((size_t)file.st_blocks * 512 <= page_bytes());
    assert_int_equal(arena_copy_descriptor(location.block, &bytes), -1);
    close(second);
    arena_detach(theirs, 100 * MIB + page_bytes());
}

/* ---- shortage ---- */
static void test_no_memory_names_the_bytes(void **state)
{
    static const size_t too_much[] = { SIZE_MAX, SIZE_MAX / 2, PTRDIFF_MAX, (size_t)1 << 50 };
    int files = open_files();
    (void)state;
    for (int i = 0; i < 4; i++) {
        void *at = NULL;
        assert_int_equal(arena_allocate(too_much[i], &at), TUTTI_NO_MEMORY);
        assert_null(at);
        assert_non_null(strstr(status_detail(), "no memory for shared tensors: "));
        assert_non_null(strstr(status_detail(), "bytes"));
    }
    assert_int_equal(open_files(), files);
}
static void expect_refusal(tutti_status wanted, const char *text)
{
    void *at = NULL;
    int files = open_files();
    assert_int_equal(arena_allocate(500 * (size_t)MIB, &at), wanted);
    assert_null(at);
    assert_non_null(strstr(status_detail(), text));
    assert_int_equal(open_files(), files);
}
static void test_refused_system_calls_are_errors(void **state)
{
    (void)state;
    fallocate_error = ENOSPC;
    expect_refusal(TUTTI_NO_MEMORY, "no memory for shared tensors: 524292096 bytes of shared memory are not available");
    fallocate_error = 0;
    memfd_error = EMFILE;
    expect_refusal(TUTTI_SYSTEM, "too many open files? see ulimit -n");
    memfd_error = 0;
    /* The arena still works. */
    arena_free(allocate(MIB));
}
static void test_error_names_a_shortage_of_ordinary_memory(void **state)
{
    /* After this the heap has rows, so the next allocation of ordinary memory is that for the new block. */
    unsigned char *small = allocate(64);
    void *at = NULL;
    (void)state;
    arena_give_up_spare();
    int blocks = arena_get_size().blocks, files = open_files();
    memory_fail_after(1);
    assert_int_equal(arena_allocate(40 * MIB, &at), TUTTI_NO_MEMORY);
    memory_fail_after(0);
    assert_null(at);
    assert_non_null(strstr(status_detail(), "no memory to manage 41947136 bytes of shared tensors"));
    assert_int_equal(arena_get_size().blocks, blocks);
    assert_int_equal(open_files(), files);
    /* The arena still works. */
    arena_free(allocate(40 * MIB));
    arena_free(small);
}
static void arena_keep_spare(void)
{
    arena_give_up_spare();
    arena_free(allocate(60 * MIB));
    assert_int_equal(arena_get_size().blocks, 1);
}
static void test_spare_block_is_freed_before_an_allocation_fails(void **state)
{
    (void)state;
    arena_keep_spare();
    machine_is_full = true;
    arena_free(allocate(100 * MIB));
    assert_int_equal(arena_get_size().blocks, 0);
    /* Without a spare block the allocation fails. */
    machine_is_full = true;
    expect_refusal(TUTTI_NO_MEMORY, "bytes of shared memory are not available");
    machine_is_full = false;
}
static void test_spare_block_is_freed_before_attaching_fails(void **state)
{
    struct location location;
    size_t bytes;
    void *theirs, *mine = allocate(20 * MIB), *other = allocate(40 * MIB);
    (void)state;
    assert_true(arena_find(mine, 20 * MIB, &location));
    arena_free(other);
    int before = arena_get_size().blocks, descriptor = arena_copy_descriptor(location.block, &bytes);
    no_addresses = true;
    assert_int_equal(arena_attach(descriptor, location.block, bytes, "process 7's", &theirs), TUTTI_OK);
    assert_int_equal(arena_get_size().blocks, before - 1);
    arena_detach(theirs, bytes);
    arena_free(mine);
}
static void test_block_is_allocated_in_full_despite_signals(void **state)
{
    static const int most[] = { 3 * MIB, 8192 };
    (void)state;
    for (int i = 0; i < 2; i++) {
        fallocate_most = most[i];
        unsigned char *at = allocate(150 * MIB);
        fallocate_most = 0;
        struct location location;
        struct stat file;
        size_t bytes;
        assert_true(arena_find(at, 150 * MIB, &location));
        int descriptor = arena_copy_descriptor(location.block, &bytes);
        assert_int_equal(fstat(descriptor, &file), 0);
        assert_true((size_t)file.st_blocks * 512 >= bytes);
        close(descriptor);
        arena_free(at);
    }
}
static void test_attach_refuses_memory_that_is_no_block(void **state)
{
    void *theirs = NULL;
    (void)state;
    int unsealed = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING), sealed;
    assert_int_equal(ftruncate(unsealed, 2 * MIB), 0);
    assert_int_equal(arena_attach(unsealed, 1, 2 * MIB, "process 7's", &theirs), TUTTI_SYSTEM);
    assert_non_null(strstr(status_detail(), "process 7's shared memory is not sealed"));
    assert_int_equal(memfd_create_sealed(2 * MIB, &sealed), TUTTI_OK);
    assert_int_equal(arena_attach(dup(sealed), 1, 3 * MIB, "process 7's", &theirs), TUTTI_SYSTEM);
    assert_non_null(strstr(status_detail(), "is 2097152 bytes and should be 3145728"));
    assert_int_equal(arena_attach(sealed, 1, 2 * MIB, "process 7's", &theirs), TUTTI_SYSTEM);
    assert_non_null(strstr(status_detail(), "the received block of process 7's shared tensors is not"));
    assert_null(theirs);
}

/* ---- fork ---- */
static void child(unsigned char *small, unsigned char *large)
{
    struct location location;
    alarm(600);
    bool fine = small[0] == 1 && large[MIB] == 2;
    small[0] = 10;
    large[MIB] = 20;
    fine &= !arena_find(small, 1, &location) && arena_get_size().blocks == 0;
    fine &= arena_free(small) == TUTTI_OK && arena_free(large) == TUTTI_OK && large[MIB] == 20;
    unsigned char *own = NULL;
    fine &= arena_allocate(MIB, (void **)&own) == TUTTI_OK && arena_find(own, MIB, &location);
    fine &= arena_free(own) == TUTTI_OK && arena_free(own) == TUTTI_INVALID_ARGUMENT;
    pid_t grandchild = fork();
    if (grandchild == 0) _exit(arena_free(small) == TUTTI_OK && small[0] == 10 ? 0 : 1);
    int status = 1;
    fine &= waitpid(grandchild, &status, 0) == grandchild && status == 0;
    _exit(fine ? 0 : 1);
}
static void test_forked_child_has_a_private_view(void **state)
{
    unsigned char *small = allocate(100), *large = allocate(20 * MIB);
    int status = 1;
    (void)state;
    small[0] = 1;
    large[MIB] = 2;
    pid_t pid = fork();
    if (pid == 0) child(small, large);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(small[0], 1);
    assert_int_equal(large[MIB], 2);
    assert_int_equal(arena_free(small), TUTTI_OK);
    assert_int_equal(arena_free(large), TUTTI_OK);
}

/* ---- threads ---- */
static _Atomic bool stop;
static void *churn(void *seed_at)
{
    unsigned seed = *(unsigned *)seed_at;
    for (int i = 0; i < 300; i++) {
        size_t bytes = (size_t)rand_r(&seed) % ((size_t)1 << (rand_r(&seed) % 25)) + 1;
        unsigned char *at = NULL;
        if (arena_allocate(bytes, (void **)&at) != TUTTI_OK) return (void *)1;
        at[0] = at[bytes - 1] = (unsigned char)seed;
        if (at[0] != (unsigned char)seed || arena_free(at) != TUTTI_OK) return (void *)1;
    }
    return NULL;
}
static void *look_up(void *always)
{
    struct location location;
    for (int i = 0; !atomic_load(&stop) || i < 1000; i++)
        if (!arena_find(always, 5000, &location) || arena_location_address(location, 5000) != always) return (void *)1;
    return NULL;
}
static void test_lookups_find_a_block_while_other_threads_allocate(void **state)
{
    unsigned seeds[2] = { 3, 4 };
    pthread_t churning[2], looking;
    void *always = allocate(5000), *result;
    (void)state;
    assert_int_equal(pthread_create(&looking, NULL, look_up, always), 0);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&churning[i], NULL, churn, &seeds[i]), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(churning[i], &result), 0);
        assert_null(result);
    }
    atomic_store(&stop, true);
    assert_int_equal(pthread_join(looking, &result), 0);
    assert_null(result);
    arena_free(always);
}

unit_function test_arena;
int test_arena(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_location_leads_back_to_its_address),
        cmocka_unit_test(test_block_is_the_whole_mapping_of_a_tensor),
        cmocka_unit_test(test_allocation_of_0_bytes_and_free_of_null_succeed),
        cmocka_unit_test(test_free_refuses_an_address_that_was_not_allocated),
        cmocka_unit_test(test_arena_does_not_grow_over_100000_cycles),
        cmocka_unit_test(test_free_blocks_are_unmapped_except_one_spare),
        cmocka_unit_test(test_spare_block_has_at_most_64_mib),
        cmocka_unit_test(test_repeated_small_allocation_stays_in_its_block),
        cmocka_unit_test(test_freed_block_returns_its_memory_while_a_peer_maps_it),
        cmocka_unit_test(test_no_memory_names_the_bytes),
        cmocka_unit_test(test_refused_system_calls_are_errors),
        cmocka_unit_test(test_error_names_a_shortage_of_ordinary_memory),
        cmocka_unit_test(test_spare_block_is_freed_before_an_allocation_fails),
        cmocka_unit_test(test_spare_block_is_freed_before_attaching_fails),
        cmocka_unit_test(test_block_is_allocated_in_full_despite_signals),
        cmocka_unit_test(test_attach_refuses_memory_that_is_no_block),
        cmocka_unit_test(test_forked_child_has_a_private_view),
        cmocka_unit_test(test_lookups_find_a_block_while_other_threads_allocate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
