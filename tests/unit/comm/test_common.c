/* Common memory is the same pages for all ranks of a host. If one rank fails to get it, no rank gets it. Its pages stay
   until all ranks have freed them or died. */
#include "backend/base/memory.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <signal.h>
#include <sys/wait.h>

#define REQUIRE_ERROR(text) REQUIRE(strstr(tutti_get_last_error(), text) != NULL)
/* These words do not fill a whole number of pages. */
enum { WORDS = 5000 };

static int ranks_on_host(struct rank *me, int host)
{
    int count = 0, other;
    for (int r = 0; r < me->size; r++) {
        REQUIRE(tutti_comm_place(me->comm, r, &other, NULL) == TUTTI_OK);
        count += other == host;
    }
    return count;
}
/* Each rank writes its part of the words, and then finds the words of all ranks of its host. */
static void writes_and_reads(struct rank *me)
{
    int host, index;
    uint64_t *words;
    REQUIRE(tutti_comm_place(me->comm, me->rank, &host, &index) == TUTTI_OK);
    int ranks = ranks_on_host(me, host);
    for (int round = 0; round < 5; round++) {
        REQUIRE(tutti_mem_alloc_common((void **)&words, WORDS * sizeof *words, me->comm) == TUTTI_OK);
        for (int i = index; i < WORDS; i += ranks) {
            REQUIRE(words[i] == 0);
            words[i] = (uint64_t)(host * 1000000 + i);
        }
        REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
        for (int i = 0; i < WORDS; i++) REQUIRE(words[i] == (uint64_t)(host * 1000000 + i));
        if (round % 2) REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
        REQUIRE(tutti_mem_free(words) == TUTTI_OK);
    }
}
static void test_ranks_of_a_host_share_pages_on_threads(void **state)
{
    (void)state;
    for (int size = 1; size <= 4; size++) world_threads(size, NULL, writes_and_reads, NULL);
    world_threads_on("0,1,0,1,0", 5, NULL, writes_and_reads, NULL);
    world_threads_on("3", 4, NULL, writes_and_reads, NULL);
}
/* A collective works in common memory as in any other. The sums are still there when the group is destroyed. */
static void outlives_its_group(struct rank *me)
{
    int host, index;
    float *sums;
    tutti_comm *comm;
    REQUIRE(tutti_comm_split(me->comm, 0, me->rank, &comm) == TUTTI_OK);
    REQUIRE(tutti_mem_alloc_common((void **)&sums, 4 * WORDS * sizeof *sums, comm) == TUTTI_OK);
    REQUIRE(tutti_comm_place(comm, me->rank, &host, &index) == TUTTI_OK);
    float *mine = sums + index * WORDS;
    for (int i = 0; i < WORDS; i++) mine[i] = (float)i;
    REQUIRE(tutti_all_reduce(mine, mine, WORDS, TUTTI_FLOAT32, TUTTI_SUM, comm, NULL) == TUTTI_OK);
    REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    for (int part = 0; part < ranks_on_host(me, host); part++)
        for (int i = 0; i < WORDS; i++) REQUIRE(sums[part * WORDS + i] == (float)(i * me->size));
    REQUIRE(tutti_mem_free(sums) == TUTTI_OK);
}
static void test_common_memory_outlives_its_group_on_threads(void **state)
{
    (void)state;
    world_threads(4, NULL, outlives_its_group, NULL);
    world_threads_on("2", 4, NULL, outlives_its_group, NULL);
}

/* ---- refused calls, which leave the group as it was ---- */
static void allocate_wrongly(struct rank *me)
{
    void *memory = NULL;
    char *fine;
    REQUIRE(tutti_mem_alloc_common(NULL, 1, me->comm) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_mem_alloc_common(&memory, 1, NULL) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_mem_alloc_common(&memory, 0, me->comm) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_mem_alloc_common(&memory, SIZE_MAX - 5, me->comm) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_comm_place(me->comm, me->size, NULL, NULL) == TUTTI_INVALID_ARGUMENT);
    REQUIRE_ERROR("is not a rank");
    REQUIRE(tutti_mem_alloc_common(&memory, 4096 + (size_t)(me->rank == 2), me->comm) == TUTTI_MISMATCH);
    REQUIRE_ERROR("rank 0 asks for 4096 bytes and rank 2 for 4097");
    REQUIRE(tutti_last_error_is_refusal() && !memory);
    REQUIRE(tutti_mem_alloc_common((void **)&fine, 1, me->comm) == TUTTI_OK);
    REQUIRE(tutti_mem_free(fine + 1) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_mem_free(fine) == TUTTI_OK);
    /* Threads of one process have the memory at one address, so all must have freed it before one frees it again. */
    world_meet(me);
    REQUIRE(tutti_mem_free(fine) == TUTTI_INVALID_ARGUMENT);
}
static void test_wrong_calls_leave_the_group_as_it_was(void **state)
{
    (void)state;
    world_threads(3, NULL, allocate_wrongly, NULL);
    world_threads_on("2", 3, NULL, allocate_wrongly, NULL);
}
#ifndef NO_PROCESSES
/* More memory than the machine has: the error of rank 0, which creates it, has the size; those of others name rank
   0. */
static void allocate_too_much(struct rank *me)
{
    void *memory = NULL;
    char *fine;
    size_t much = (size_t)1 << 46;
    REQUIRE(tutti_mem_alloc_common(&memory, much, me->comm) == TUTTI_NO_MEMORY);
    REQUIRE(tutti_last_error_is_refusal() && !memory);
    if (me->rank == 0) REQUIRE_ERROR("70368744177664 bytes");
    else REQUIRE_ERROR("rank 0 could not allocate it; its own error says why");
    REQUIRE(tutti_mem_alloc_common((void **)&fine, 100, me->comm) == TUTTI_OK);
    REQUIRE(tutti_mem_free(fine) == TUTTI_OK);
}
static void test_error_of_too_much_memory_names_size_and_rank(void **state)
{
    (void)state;
    world_threads(2, NULL, allocate_too_much, NULL);
    assert_int_equal(world_processes(2, 60, allocate_too_much, NULL), 0);
}
/* The address sanitizer does not work with a limit on addresses. */
#ifndef __SANITIZE_ADDRESS__
/* One process has a limit on addresses: that of rank 0, which creates the memory, or that of rank 1. */
static void allocate_with_few_addresses(struct rank *me)
{
    void *memory = NULL;
    int limited = *(const int *)me->context;
    if (me->rank == limited) world_limit(RLIMIT_AS, 1 << 20);
    tutti_status status = tutti_mem_alloc_common(&memory, 8 << 20, me->comm);
    REQUIRE(status == TUTTI_NO_MEMORY && tutti_last_error_is_refusal());
    if (me->rank == limited) REQUIRE_ERROR("mmap of 8388608 bytes");
    else REQUIRE_ERROR(limited ? "rank 1 could not allocate it" : "rank 0 could not allocate it");
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
}
static void test_no_rank_gets_memory_if_one_lacks_addresses(void **state)
{
    (void)state;
    for (int limited = 0; limited < 2; limited++)
        assert_int_equal(world_processes(2, 60, allocate_with_few_addresses, &limited), 0);
}
#endif

/* ---- a rank that dies ---- */
static void die_before_allocating(struct rank *me)
{
    void *memory = NULL;
    int dying = *(const int *)me->context;
    if (me->rank == dying) kill(getpid(), SIGKILL);
    tutti_status status = tutti_mem_alloc_common(&memory, 1 << 20, me->comm);
    REQUIRE(status == TUTTI_PEER_LOST);
    REQUIRE_ERROR(dying ? "rank 1" : "rank 0");
    REQUIRE(!memory && tutti_comm_destroy(me->comm) == TUTTI_OK);
    _exit(0);
}
static void test_death_of_a_rank_fails_the_allocation(void **state)
{
    (void)state;
    for (int dying = 0; dying < 2; dying++) assert_int_equal(world_processes(3, 60, die_before_allocating, &dying), 1);
}
/* The pages that a dead rank has created stay with the others. */
static void die_with_pages(struct rank *me)
{
    char *text;
    REQUIRE(tutti_mem_alloc_common((void **)&text, 4096, me->comm) == TUTTI_OK);
    if (me->rank == 0) strcpy(text, "still here");
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    if (me->rank == 0) kill(getpid(), SIGKILL);
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_PEER_LOST);
    REQUIRE(strcmp(text, "still here") == 0);
    _exit(tutti_comm_destroy(me->comm) != TUTTI_OK);
}
static void test_pages_outlive_the_rank_that_created_them(void **state)
{
    (void)state;
    assert_int_equal(world_processes(2, 60, die_with_pages, NULL), 1);
}
static void free_in_a_child(struct rank *me)
{
    char *mine;
    int status;
    REQUIRE(tutti_mem_alloc_common((void **)&mine, 4096, me->comm) == TUTTI_OK);
    pid_t child = fork();
    if (child == 0) _exit(tutti_mem_free(mine) != TUTTI_INVALID_ARGUMENT);
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    mine[0] = 1;
    REQUIRE(tutti_mem_free(mine) == TUTTI_OK);
}
static void test_forked_child_does_not_have_the_memory(void **state)
{
    (void)state;
    assert_int_equal(world_processes(2, 60, free_in_a_child, NULL), 0);
}
/* ---- all of it, by processes ---- */
static void test_ranks_of_a_host_share_pages_on_processes(void **state)
{
    (void)state;
    assert_int_equal(world_processes(3, 60, writes_and_reads, NULL), 0);
    world_pretend("0,1,0");
    assert_int_equal(world_processes(3, 60, writes_and_reads, NULL), 0);
    world_pretend("");
}
static void test_common_memory_outlives_its_group_on_processes(void **state)
{
    (void)state;
    assert_int_equal(world_processes(2, 60, outlives_its_group, NULL), 0);
}
#endif
unit_function test_common;
int test_common(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_of_a_host_share_pages_on_threads),
        cmocka_unit_test(test_common_memory_outlives_its_group_on_threads),
        cmocka_unit_test(test_wrong_calls_leave_the_group_as_it_was),
#ifndef NO_PROCESSES
        cmocka_unit_test(test_ranks_of_a_host_share_pages_on_processes),
        cmocka_unit_test(test_common_memory_outlives_its_group_on_processes),
        cmocka_unit_test(test_error_of_too_much_memory_names_size_and_rank),
#ifndef __SANITIZE_ADDRESS__
        cmocka_unit_test(test_no_rank_gets_memory_if_one_lacks_addresses),
#endif
        cmocka_unit_test(test_death_of_a_rank_fails_the_allocation),
        cmocka_unit_test(test_pages_outlive_the_rank_that_created_them),
        cmocka_unit_test(test_forked_child_does_not_have_the_memory),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
