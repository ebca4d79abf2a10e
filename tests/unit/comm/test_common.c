/* Memory in common: the same pages for the ranks of a host, all have it or none, and it goes when nobody needs it. */
#include "backend/base/memory.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <signal.h>
#include <sys/wait.h>

#define SAYS(text) REQUIRE(strstr(tutti_get_last_error(), text) != NULL)
enum { WORDS = 5000 };                                  /* no whole number of pages */

static int ranks_on_host(struct rank *me, int host)
{
    int count = 0, other;
    for (int r = 0; r < me->size; r++) {
        REQUIRE(tutti_comm_place(me->comm, r, &other, NULL) == TUTTI_OK);
        count += other == host;
    }
    return count;
}
/* Each writes what is its own, and finds what the others of its host have written, and nothing else. */
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
static void test_the_same_pages_on_threads(void **state)
{
    (void)state;
    for (int size = 1; size <= 4; size++) world_threads(size, NULL, writes_and_reads, NULL);
    world_threads_on("0,1,0,1,0", 5, NULL, writes_and_reads, NULL);
    world_threads_on("3", 4, NULL, writes_and_reads, NULL);
}
/* A collective takes it like any other memory; what it holds outlives the group. */
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
static void test_it_outlives_its_group_on_threads(void **state)
{
    (void)state;
    world_threads(4, NULL, outlives_its_group, NULL);
    world_threads_on("2", 4, NULL, outlives_its_group, NULL);
}

/* ---- what is refused, and leaves the group as it was ---- */
static void asks_wrongly(struct rank *me)
{
    void *memory = NULL;
    char *fine;
    REQUIRE(tutti_mem_alloc_common(NULL, 1, me->comm) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_mem_alloc_common(&memory, 1, NULL) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_mem_alloc_common(&memory, 0, me->comm) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_mem_alloc_common(&memory, SIZE_MAX - 5, me->comm) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_comm_place(me->comm, me->size, NULL, NULL) == TUTTI_INVALID_ARGUMENT);
    SAYS("is not a rank");
    REQUIRE(tutti_mem_alloc_common(&memory, 4096 + (size_t)(me->rank == 2), me->comm) == TUTTI_MISMATCH);
    SAYS("rank 0 asks for 4096 bytes and rank 2 for 4097");
    REQUIRE(tutti_last_error_is_refusal() && !memory);
    REQUIRE(tutti_mem_alloc_common((void **)&fine, 1, me->comm) == TUTTI_OK);
    REQUIRE(tutti_mem_free(fine + 1) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_mem_free(fine) == TUTTI_OK);
    world_meet(me);                                     /* threads of one process have it at one address */
    REQUIRE(tutti_mem_free(fine) == TUTTI_INVALID_ARGUMENT);
}
static void test_what_is_refused(void **state)
{
    (void)state;
    world_threads(3, NULL, asks_wrongly, NULL);
    world_threads_on("2", 3, NULL, asks_wrongly, NULL);
}
#ifndef NO_PROCESSES
/* More than there is: who could not get it says how much, the others who it was. */
static void asks_for_too_much(struct rank *me)
{
    void *memory = NULL;
    char *fine;
    size_t much = (size_t)1 << 46;
    REQUIRE(tutti_mem_alloc_common(&memory, much, me->comm) == TUTTI_NO_MEMORY);
    REQUIRE(tutti_last_error_is_refusal() && !memory);
    if (me->rank == 0) SAYS("70368744177664 bytes");
    else SAYS("rank 0 could not allocate it; its own error says why");
    REQUIRE(tutti_mem_alloc_common((void **)&fine, 100, me->comm) == TUTTI_OK);
    REQUIRE(tutti_mem_free(fine) == TUTTI_OK);
}
static void test_more_than_there_is(void **state)
{
    (void)state;
    world_threads(2, NULL, asks_for_too_much, NULL);
    assert_int_equal(world_processes(2, 60, asks_for_too_much, NULL), 0);
}
#ifndef __SANITIZE_ADDRESS__                            /* which needs addresses of its own */
/* A limit on addresses in one process only: that of the maker, or that of another. */
static void is_limited(struct rank *me)
{
    void *memory = NULL;
    int limited = *(const int *)me->context;
    if (me->rank == limited) world_limit(RLIMIT_AS, 1 << 20);
    tutti_status status = tutti_mem_alloc_common(&memory, 8 << 20, me->comm);
    REQUIRE(status == TUTTI_NO_MEMORY && tutti_last_error_is_refusal());
    if (me->rank == limited) SAYS("mmap of 8388608 bytes");
    else SAYS(limited ? "rank 1 could not allocate it" : "rank 0 could not allocate it");
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
}
static void test_one_rank_has_no_addresses(void **state)
{
    (void)state;
    for (int limited = 0; limited < 2; limited++) assert_int_equal(world_processes(2, 60, is_limited, &limited), 0);
}
#endif

/* ---- a rank that dies ---- */
static void dies(struct rank *me)
{
    void *memory = NULL;
    int dying = *(const int *)me->context;
    if (me->rank == dying) kill(getpid(), SIGKILL);
    tutti_status status = tutti_mem_alloc_common(&memory, 1 << 20, me->comm);
    REQUIRE(status == TUTTI_PEER_LOST);
    SAYS(dying ? "rank 1" : "rank 0");
    REQUIRE(!memory && tutti_comm_destroy(me->comm) == TUTTI_OK);
    _exit(0);
}
static void test_a_rank_dies(void **state)
{
    (void)state;
    for (int dying = 0; dying < 2; dying++) assert_int_equal(world_processes(3, 60, dies, &dying), 1);
}
/* Who dies leaves its pages to the others. */
static void leaves_its_pages(struct rank *me)
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
static void test_pages_outlive_who_made_them(void **state)
{
    (void)state;
    assert_int_equal(world_processes(2, 60, leaves_its_pages, NULL), 1);
}
static void forks(struct rank *me)
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
static void test_a_child_does_not_have_it(void **state)
{
    (void)state;
    assert_int_equal(world_processes(2, 60, forks, NULL), 0);
}
/* ---- all of it, by processes ---- */
static void test_the_same_pages_on_processes(void **state)
{
    (void)state;
    assert_int_equal(world_processes(3, 60, writes_and_reads, NULL), 0);
    world_pretend("0,1,0");
    assert_int_equal(world_processes(3, 60, writes_and_reads, NULL), 0);
    world_pretend("");
}
static void test_it_outlives_its_group_on_processes(void **state)
{
    (void)state;
    assert_int_equal(world_processes(2, 60, outlives_its_group, NULL), 0);
}
#endif
unit_function test_common;
int test_common(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_pages_on_threads),
        cmocka_unit_test(test_it_outlives_its_group_on_threads),
        cmocka_unit_test(test_what_is_refused),
#ifndef NO_PROCESSES
        cmocka_unit_test(test_the_same_pages_on_processes),
        cmocka_unit_test(test_it_outlives_its_group_on_processes),
        cmocka_unit_test(test_more_than_there_is),
#ifndef __SANITIZE_ADDRESS__
        cmocka_unit_test(test_one_rank_has_no_addresses),
#endif
        cmocka_unit_test(test_a_rank_dies),
        cmocka_unit_test(test_pages_outlive_who_made_them),
        cmocka_unit_test(test_a_child_does_not_have_it),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
