/* The algorithm that runs without a choice by the user accepts the counts, was measured best, and is the same on all
   ranks, even if the ranks measured different parameters. */
#include "backend/base/settings.h"
#include "backend/collectives/collectives.h"
#include "backend/engine/comm.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include "tests/unit/model/machines.h"
#include <dirent.h>
#include <sys/wait.h>

static const size_t KIB = 1024, MIB = 1 << 20;
struct machine_group { struct layout *layout; struct chooser chooser; };
static void machine_group_init(struct machine_group *g, const struct machine *machine, int size, int cores)
{
    assert_int_equal(layout_create(NULL, size, &g->layout), TUTTI_OK);
    g->chooser = (struct chooser){
        .layout = g->layout, .cache = plan_cache_create(SIZE_MAX, NULL, NULL), .cores = cores, .machine = *machine
    };
    assert_non_null(g->chooser.cache);
}
static void machine_group_finish(struct machine_group *g)
{
    chooser_finish(&g->chooser);
    plan_cache_destroy(g->chooser.cache);
    layout_destroy(g->layout);
}
static void machine_group_init_over(struct machine_group *g, const int *host_of_rank, int size, int cores)
{
    assert_int_equal(layout_create(host_of_rank, size, &g->layout), TUTTI_OK);
    g->chooser = (struct chooser){
        .layout = g->layout, .cache = plan_cache_create(SIZE_MAX, NULL, NULL), .cores = cores, .machine = near_cores
    };
    assert_non_null(g->chooser.cache);
}
static struct choice choice_make(struct machine_group *g, enum collective collective, size_t bytes,
    enum placement_kind placement, bool uneven)
{
    struct question q = { collective, NULL, bytes, placement, uneven, false };
    struct choice c;
    assert_int_equal(chooser_make_choice(&g->chooser, &q, &c), TUTTI_OK);
    return c;
}
static void test_choice_on_one_host_has_host_memory(void **state)
{
    (void)state;
    for (int size = 1; size <= 20; size = 2 * size + 1) {
        struct machine_group g;
        machine_group_init(&g, &near_cores, size, 2);
        for (int f = 0; f < COLLECTIVE_COUNT; f++)
            for (size_t bytes = 0; bytes < SIZE_MAX / 64; bytes = 64 * bytes + 1)
                for (int way = 0; way < 6; way++) {
                    struct choice c =
                        choice_make(&g, (enum collective)f, bytes, (enum placement_kind)(way / 2), way % 2);
                    assert_int_equal(c.algorithm->collective, f);
                    assert_true(c.algorithm->host_memory);
                    assert_false(way % 2 && c.algorithm->equal_chunks);
                    assert_true(c.tile_bytes >= 4 * KIB && c.slots >= 2 && c.slots <= 8);
                }
        machine_group_finish(&g);
    }
}
/* ---- single copy of private tensors ---- */
/* Single copy is chosen for large exchanges on the machine on which copies between caches cost the same with all
   stores, and not on those whose slots move bytes twice as fast. A question may demand single copy. Over several hosts
   it is never chosen. */
static void test_single_copy_is_chosen_by_parameters(void **state)
{
    static const enum collective copying[] = { ALLGATHER, ALL_TO_ALL, SCATTER };
    static const int apart[] = { 0, 0, 1, 1 };
    struct machine_group g[4];
    (void)state;
    machine_group_init(&g[0], &copies_cost_twice, 2, 2);
    machine_group_init(&g[1], &near_cores, 2, 2);
    machine_group_init(&g[2], &far_cores, 2, 2);
    machine_group_init_over(&g[3], apart, 4, 2);
    for (size_t bytes = 4 * MIB; bytes <= 64 * MIB; bytes *= 2)
        for (size_t f = 0; f < sizeof copying / sizeof *copying; f++) {
            assert_true(choice_make(&g[0], copying[f], bytes, TENSORS_OPEN_APART, false).reads_private);
            assert_false(choice_make(&g[0], copying[f], 64 * KIB, TENSORS_OPEN_APART, false).reads_private);
            assert_false(choice_make(&g[0], BROADCAST, bytes, TENSORS_OPEN_APART, false).reads_private);
            assert_false(choice_make(&g[0], copying[f], bytes, TENSORS_PRIVATE, false).reads_private);
            assert_false(choice_make(&g[1], copying[f], bytes, TENSORS_OPEN_APART, false).reads_private);
            assert_false(choice_make(&g[2], copying[f], bytes, TENSORS_OPEN_APART, false).reads_private);
            struct question demanding = { copying[f], NULL, bytes, TENSORS_OPEN_APART, false, true };
            struct choice c;
            assert_int_equal(chooser_make_choice(&g[1].chooser, &demanding, &c), TUTTI_OK);
            assert_true(c.reads_private);
            assert_int_equal(chooser_make_choice(&g[3].chooser, &demanding, &c), TUTTI_OK);
            assert_false(c.reads_private);
        }
    for (int i = 0; i < 4; i++) machine_group_finish(&g[i]);
}
/* The measured ratios of an exchange by single copy and through slots count, for small messages (one_copy) and large
   ones (lost_one_copy), not the costs of a byte. */
static void test_measured_exchange_decides_on_single_copy(void **state)
{
    struct machine machines[3] = { far_cores, far_cores, copies_cost_twice };
    static const bool little[] = { false, true, false }, much[] = { true, false, false };
    (void)state;
    machines[0].lost_one_copy = machines[1].one_copy = 0.4;
    machines[2].lost_one_copy = 1.2;
    for (int i = 0; i < 3; i++) {
        struct machine_group g;
        machine_group_init(&g, &machines[i], 2, 2);
        assert_int_equal(choice_make(&g, ALLGATHER, 256 * KIB, TENSORS_OPEN_IN_PLACE, false).reads_private, little[i]);
        assert_int_equal(choice_make(&g, ALLGATHER, 16 * MIB, TENSORS_OPEN_IN_PLACE, false).reads_private, much[i]);
        machine_group_finish(&g);
    }
}
/* On small and large layouts the choice is hierarchical and does not depend on the placement of tensors. */
static void test_choice_over_several_hosts_is_hierarchical(void **state)
{
    (void)state;
    for (int size = 2; size <= 1023; size = 3 * size + 1) {
        struct machine_group g;
        int host[1024];
        for (int r = 0; r < size; r++) host[r] = r % (size < 20 ? 2 : size < 100 ? 10 : size / 4);
        machine_group_init_over(&g, host, size, 2);
        for (int f = 0; f < COLLECTIVE_COUNT; f++)
            for (size_t bytes = 64; bytes <= 64 * MIB; bytes *= 64)
                for (int uneven = 0; uneven <= (f == ALL_TO_ALL || f == ALLGATHER || f == REDUCE_SCATTER); uneven++) {
                    struct choice c = choice_make(&g, (enum collective)f, bytes, TENSORS_PRIVATE, uneven);
                    struct choice shared = choice_make(&g, (enum collective)f, bytes, TENSORS_SHARED_IN_PLACE, uneven);
                    bool flat = uneven && f == ALL_TO_ALL;
                    assert_true(c.algorithm->hierarchical == !flat && c.algorithm->collective == (enum collective)f);
                    assert_false(c.algorithm->host_memory);
                    assert_false(uneven && c.algorithm->equal_chunks);
                    assert_false(size > 500 && c.algorithm->few_hosts);
                    assert_ptr_equal(c.algorithm, shared.algorithm);
                    assert_int_equal(c.tile_bytes, shared.tile_bytes);
                    assert_int_equal(c.slots, shared.slots);
                }
        machine_group_finish(&g);
    }
}
static void test_host_memory_algorithm_is_refused_over_several_hosts(void **state)
{
    struct machine_group g;
    (void)state;
    machine_group_init_over(&g, (int[]){ 0, 1, 0, 1 }, 4, 2);
    struct question q = { ALLREDUCE, collectives_find_algorithm(ALLREDUCE, "two_shot"), MIB, TENSORS_PRIVATE, false,
        false };
    struct choice c;
    assert_int_equal(chooser_make_choice(&g.chooser, &q, &c), TUTTI_INVALID_ARGUMENT);
    assert_string_equal(status_detail(),
        "allreduce two_shot works on one host only, but the 4 ranks are on 2 "
        "hosts: choose another algorithm, or none");
    machine_group_finish(&g);
}
static const char *name(struct machine_group *g, enum collective collective, size_t bytes,
    enum placement_kind placement)
{
    return choice_make(g, collective, bytes, placement, false).algorithm->name;
}
static void expect_two_rounds(struct machine_group *g, size_t bytes, enum placement_kind placement)
{
    assert_int_equal(strncmp(name(g, ALLREDUCE, bytes, placement), "two_shot", 8), 0);
}
/* These algorithms were measured best for 2, 4 and 8 ranks on the two cores of near_cores. */
static void test_choice_is_what_was_measured_best(void **state)
{
    (void)state;
    struct machine_group g;
    for (int size = 2; size <= 8; size *= 2) {
        machine_group_init(&g, &near_cores, size, 2);
        for (size_t bytes = 8; bytes <= (size == 2 ? 2 * KIB : 4 * KIB); bytes *= 2)
            assert_string_equal(name(&g, ALLREDUCE, bytes, TENSORS_PRIVATE), "one_shot");
        for (size_t bytes = 256 * KIB; bytes <= 64 * MIB && size > 2; bytes *= 2)
            expect_two_rounds(&g, bytes, TENSORS_PRIVATE);
        for (size_t bytes = 256 * KIB; bytes <= 64 * MIB; bytes *= 2)
            expect_two_rounds(&g, bytes, TENSORS_SHARED_IN_PLACE);
        machine_group_finish(&g);
    }
}
static void test_all_ranks_share_the_work_of_a_root(void **state)
{
    (void)state;
    struct machine_group g;
    machine_group_init(&g, &near_cores, 4, 4);
    assert_string_equal(name(&g, REDUCE, 8, TENSORS_PRIVATE), "read");
    assert_string_equal(name(&g, REDUCE, 16 * MIB, TENSORS_PRIVATE), "two_shot_read");
    assert_string_equal(name(&g, GATHER, 16 * MIB, TENSORS_SHARED_APART), "write");
    machine_group_finish(&g);
}
static void test_root_takes_its_share_if_tensors_are_shared(void **state)
{
    (void)state;
    struct machine_group g;
    for (int size = 2; size <= 8; size *= 2) {
        machine_group_init(&g, &near_cores, size, 2);
        for (size_t bytes = 64 * KIB; bytes <= 64 * MIB; bytes *= 4) {
            assert_string_equal(name(&g, REDUCE, bytes, TENSORS_SHARED_APART), "two_shot");
            assert_string_equal(name(&g, REDUCE, bytes, TENSORS_SHARED_IN_PLACE), "two_shot");
            /* With more ranks the share of the root is small. */
            if (size > 4) continue;
            assert_string_equal(name(&g, BROADCAST, bytes, TENSORS_SHARED_IN_PLACE), "read_write");
            if (bytes < MIB) continue;
            assert_string_equal(name(&g, GATHER, bytes, TENSORS_SHARED_IN_PLACE), "read_write");
            assert_string_equal(name(&g, SCATTER, bytes, TENSORS_SHARED_IN_PLACE), "read_write");
        }
        machine_group_finish(&g);
    }
}
static void test_root_out_of_place_takes_no_share(void **state)
{
    (void)state;
    static const struct machine *const machines[] = { &near_cores, &far_cores };
    struct machine_group g;
    for (int m = 0; m < 2; m++) {
        machine_group_init(&g, machines[m], 2, 2);
        for (size_t bytes = MIB; bytes <= 64 * MIB; bytes *= 4) {
            assert_string_equal(name(&g, GATHER, bytes, TENSORS_SHARED_APART), "write");
            /* On far cores reading costs five times as much as writing. */
            if (m && bytes == MIB) continue;
            assert_string_equal(name(&g, BROADCAST, bytes, TENSORS_SHARED_APART), "read");
            assert_string_equal(name(&g, SCATTER, bytes, TENSORS_SHARED_APART), "read");
        }
        machine_group_finish(&g);
    }
}
static void test_large_messages_select_late(void **state)
{
    (void)state;
    struct machine_group g;
    machine_group_init(&g, &near_cores, 2, 2);
    struct choice small = choice_make(&g, ALLREDUCE, 512, TENSORS_PRIVATE, false);
    struct choice large = choice_make(&g, ALLREDUCE, MIB, TENSORS_PRIVATE, false);
    assert_false(choice_selects_late(&g.chooser, &small));
    assert_true(choice_selects_late(&g.chooser, &large));
    machine_group_finish(&g);
}
/* A choice does not depend on earlier questions, so ranks with different earlier questions choose the same. */
static void test_choice_depends_only_on_the_question(void **state)
{
    (void)state;
    struct machine_group once, often;
    machine_group_init(&once, &far_cores, 4, 4);
    machine_group_init(&often, &far_cores, 4, 4);
    for (size_t bytes = 16 * MIB; bytes; bytes /= 3)
        for (int f = 0; f < COLLECTIVE_COUNT; f++)
            choice_make(&often, (enum collective)f, bytes, TENSORS_SHARED_APART, false);
    for (size_t bytes = 16 * MIB; bytes; bytes /= 2) {
        struct choice a = choice_make(&once, ALLREDUCE, bytes, TENSORS_PRIVATE, false);
        for (int again = 0; again < 2; again++) {
            struct choice b = choice_make(&often, ALLREDUCE, bytes, TENSORS_PRIVATE, false);
            assert_ptr_equal(a.algorithm, b.algorithm);
            assert_true(a.tile_bytes == b.tile_bytes && a.slots == b.slots && a.cost == b.cost);
        }
    }
    machine_group_finish(&once);
    machine_group_finish(&often);
}

/* ---- ranks with different parameters ---- */
/* On the first machine a round costs almost nothing, on the second more than any bytes. */
static const struct machine different_machines[2] = {
    { .l2 = 64 << 10,
        .last = 1 << 20,
        .line = 1,
        .near = 0.1,
        .far = 50,
        .add = 0.1,
        .slot_write = 0.1,
        .slot_read = 99,
        .lost_write = 0.1,
        .lost_read = 99,
        .fetch = 99,
        .lost_fetch = 99,
        .reading = 1e6,
        .one_copy = 1,
        .lost_one_copy = 1,
        .tile = 1,
        .pause = 1,
        .yield = 10,
        .hand_over = 10,
        .sleep = 100,
        .message = 100,
        .announced = 300,
        .wire = 1 },
    { .l2 = 64 << 20,
        .last = 1 << 30,
        .line = 1e5,
        .near = 0.001,
        .far = 0.001,
        .add = 0.001,
        .slot_write = 0.001,
        .slot_read = 0.001,
        .lost_write = 0.001,
        .lost_read = 0.001,
        .fetch = 0.001,
        .lost_fetch = 0.001,
        .reading = 1e6,
        .one_copy = 1,
        .lost_one_copy = 1,
        .tile = 1e6,
        .pause = 25,
        .yield = 540,
        .hand_over = 1e6,
        .sleep = 17500,
        .message = 1e6,
        .announced = 3e6,
        .wire = 0.01 },
};
static void test_different_parameters_give_different_choices(void **state)
{
    (void)state;
    struct machine_group g[2];
    for (int i = 0; i < 2; i++) machine_group_init(&g[i], &different_machines[i], 3, 3);
    assert_string_not_equal(name(&g[0], ALLREDUCE, MIB, TENSORS_PRIVATE), name(&g[1], ALLREDUCE, MIB, TENSORS_PRIVATE));
    assert_true(choice_make(&g[0], ALLREDUCE, MIB, TENSORS_PRIVATE, false).tile_bytes
        != choice_make(&g[1], ALLREDUCE, MIB, TENSORS_PRIVATE, false).tile_bytes);
    for (int i = 0; i < 2; i++) machine_group_finish(&g[i]);
}
#ifndef NO_PROCESSES
enum { RANKS = 3, MOST_FLOATS = 1 << 19 };
static void sum_all_sizes(tutti_comm *comm, int rank)
{
    float *data = malloc(MOST_FLOATS * sizeof *data);
    REQUIRE(data != NULL);
    for (size_t n = 1; n <= MOST_FLOATS; n *= 4) {
        for (size_t i = 0; i < n; i++) data[i] = (float)(i % 97) + (float)rank;
        REQUIRE(tutti_all_reduce(data, data, n, TUTTI_FLOAT32, TUTTI_SUM, comm, NULL) == TUTTI_OK);
        for (size_t i = 0; i < n; i++) REQUIRE(data[i] == (float)(RANKS * (i % 97) + 3));
    }
    free(data);
}
static void require_equal_parameters(tutti_comm *comm)
{
    struct machine theirs[RANKS], *mine = &comm->launcher.chooser.machine;
    REQUIRE(tutti_all_gather(mine, theirs, sizeof *mine, TUTTI_UINT8, comm, NULL) == TUTTI_OK);
    for (int r = 0; r < RANKS; r++) REQUIRE(memcmp(&theirs[r], mine, sizeof *mine) == 0);
}
static void join_with_parameters(int rank, tutti_unique_id id, const char *folder)
{
    char identity[IDENTITY_BYTES], mine[80];
    tutti_comm *comm, *other;
    alarm(600);
    snprintf(mine, sizeof mine, "%s/%d", folder, rank);
    setenv("TUTTI_CACHE", mine, 1);
    settings_reload();
    /* The cores of the ranks may have any distance. */
    for (int distance = 1; distance < DISTANCES; distance++) {
        machine_format_identity(distance, identity);
        REQUIRE(machine_file_write(mine, identity, &different_machines[rank % 2]));
    }
    machine_store_parameters(0, &different_machines[rank % 2], false);
    REQUIRE(tutti_comm_init_rank(&comm, RANKS, id, rank) == TUTTI_OK);
    REQUIRE(memcmp(&comm->launcher.chooser.machine, &different_machines[0], sizeof *different_machines) == 0);
    require_equal_parameters(comm);
    sum_all_sizes(comm, rank);
    /* Rank 1, which has other parameters, is the first rank of this group. */
    REQUIRE(tutti_comm_split(comm, 0, rank != 1, &other) == TUTTI_OK);
    require_equal_parameters(other);
    sum_all_sizes(other, rank);
    REQUIRE(tutti_comm_destroy(other) == TUTTI_OK && tutti_comm_destroy(comm) == TUTTI_OK);
    _exit(0);
}
static void folder_remove(const char *folder)
{
    char path[600];
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (unlink(path) != 0) folder_remove(path);
    }
    if (d) closedir(d);
    rmdir(folder);
}
static void test_ranks_with_different_parameters_agree(void **state)
{
    (void)state;
    char folder[] = "choice-XXXXXX";
    tutti_unique_id id;
    int bad = 0;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(tutti_get_unique_id(&id), TUTTI_OK);
    fflush(NULL);
    for (int rank = 0; rank < RANKS; rank++)
        if (fork() == 0) join_with_parameters(rank, id, folder);
    for (int r = 0, status; r < RANKS; r++) bad += wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status);
    folder_remove(folder);
    assert_int_equal(bad, 0);
}
#endif

unit_function test_selection;
int test_selection(void)
{
    const struct CMUnitTest tests[] = {
#ifndef NO_PROCESSES
        /* This test is first, because its processes must not inherit parameters. */
        cmocka_unit_test(test_ranks_with_different_parameters_agree),
#endif
        cmocka_unit_test(test_different_parameters_give_different_choices),
        cmocka_unit_test(test_choice_on_one_host_has_host_memory),
        cmocka_unit_test(test_single_copy_is_chosen_by_parameters),
        cmocka_unit_test(test_measured_exchange_decides_on_single_copy),
        cmocka_unit_test(test_choice_over_several_hosts_is_hierarchical),
        cmocka_unit_test(test_host_memory_algorithm_is_refused_over_several_hosts),
        cmocka_unit_test(test_choice_is_what_was_measured_best),
        cmocka_unit_test(test_all_ranks_share_the_work_of_a_root),
        cmocka_unit_test(test_root_takes_its_share_if_tensors_are_shared),
        cmocka_unit_test(test_root_out_of_place_takes_no_share),
        cmocka_unit_test(test_large_messages_select_late),
        cmocka_unit_test(test_choice_depends_only_on_the_question),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
