/* Simulated hosts (TUTTI_HOSTS): valid and invalid settings, and the hosts on which the ranks of a group then are. */
#include "backend/engine/comm.h"
#include "backend/join/contacts.h"
#include "backend/join/hosts.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <pthread.h>
#include <sys/wait.h>

enum { MOST = 8 };
/* ---- the setting ---- */
static void expect_hosts(const char *text, int size, const int *hosts)
{
    int found[MOST];
    assert_int_equal(hosts_parse_setting(text, size, found), TUTTI_OK);
    assert_memory_equal(found, hosts, (size_t)size * sizeof *hosts);
}
static void test_setting_is_a_number_of_hosts_or_a_list(void **state)
{
    (void)state;
    expect_hosts("", 3, (int[]){ 0, 0, 0 });
    expect_hosts("1", 3, (int[]){ 0, 0, 0 });
    expect_hosts("2", 4, (int[]){ 0, 0, 1, 1 });
    expect_hosts("2", 5, (int[]){ 0, 0, 0, 1, 1 });
    expect_hosts("3", 5, (int[]){ 0, 0, 1, 1, 2 });
    expect_hosts("4", 4, (int[]){ 0, 1, 2, 3 });
    expect_hosts("0,1,0,1", 4, (int[]){ 0, 1, 0, 1 });
    expect_hosts("2,0,2", 3, (int[]){ 2, 0, 2 });
}
static void expect_refused(const char *text, int size, const char *why)
{
    int found[MOST];
    assert_int_equal(hosts_parse_setting(text, size, found), TUTTI_INVALID_ARGUMENT);
    if (!strstr(tutti_get_last_error(), why)) fail_msg("%s: %s", text, tutti_get_last_error());
}
static void test_invalid_setting_is_an_error(void **state)
{
    (void)state;
    expect_refused("3", 2,
        "TUTTI_HOSTS=3 is not a possible number of hosts; for 2 ranks give a number of hosts (1 to 2)");
    expect_refused("0", 2, "is not a possible number of hosts");
    expect_refused("-1", 2, "is not a possible number of hosts");
    expect_refused("two", 2, "is not a possible number of hosts");
    expect_refused("2x", 2, "is not a possible number of hosts");
    expect_refused("0,1", 3, "does not name a host for each rank");
    expect_refused("0,1,", 3, "does not name a host for each rank");
    expect_refused(",0,1", 3, "does not name a host for each rank");
    expect_refused("0,,1", 3, "does not name a host for each rank");
    expect_refused("0,3,1", 3, "does not name a host for each rank");
    expect_refused("0,1,0,1", 3, "names more hosts than there are ranks");
    expect_refused("99999999999999999999", 3, "is not a possible number of hosts");
}

/* ---- the records of members ---- */
/* A letter for the host token of each rank, and its simulated host. NULL: no host is simulated. */
struct records { const char *tokens; const int *simulated; };
static void make_group(const struct records *records, struct member *members, struct group *out)
{
    *out = (struct group){ .size = (int)strlen(records->tokens), .name = "choir", .members = members };
    for (int r = 0; r < out->size; r++) {
        unsigned char n = (unsigned char)(r + 1);
        members[r] =
            (struct member){ .identity = { { n }, 100u + n, "node" }, .contact = { 2, 4711, 0, { 10, 0, 0, n } } };
        members[r].host_token[15] = (unsigned char)records->tokens[r];
        if (!records->simulated) continue;
        members[r].host = records->simulated[r];
        members[r].simulates = 1;
    }
}
static void expect_layout(const struct records *records, const int *hosts)
{
    struct member members[MOST];
    struct group g;
    struct layout *layout;
    make_group(records, members, &g);
    assert_int_equal(hosts_create_layout(&g, &layout), TUTTI_OK);
    for (int r = 0; r < g.size; r++) assert_int_equal(layout_host(layout, r), hosts[r]);
    layout_destroy(layout);
}
static void test_ranks_with_one_token_are_on_one_host(void **state)
{
    (void)state;
    expect_layout(&(struct records){ "aaa", NULL }, (int[]){ 0, 0, 0 });
    /* Hosts are numbered in the order of their first ranks. */
    expect_layout(&(struct records){ "ba", NULL }, (int[]){ 0, 1 });
    expect_layout(&(struct records){ "abab", NULL }, (int[]){ 0, 1, 0, 1 });
    expect_layout(&(struct records){ "cbbacba", NULL }, (int[]){ 0, 1, 1, 2, 0, 1, 2 });
    expect_layout(&(struct records){ "aaaa", (int[]){ 3, 0, 3, 70000 } }, (int[]){ 0, 1, 0, 2 });
}
static void test_simulation_on_several_hosts_is_an_error(void **state)
{
    struct member members[MOST];
    struct group g;
    struct layout *layout;
    (void)state;
    make_group(&(struct records){ "aab", (int[]){ 0, 1, 1 } }, members, &g);
    assert_int_equal(hosts_create_layout(&g, &layout), TUTTI_INVALID_ARGUMENT);
    assert_non_null(strstr(tutti_get_last_error(),
        "TUTTI_HOSTS simulates hosts for choir, but rank 0 (process 101 on node) and rank 2 (process 103 on node) are "
        "on different hosts: unset it"));
}
static void refuse_contact(const struct sock_address *contact, const char *why)
{
    struct member members[MOST];
    struct group g;
    make_group(&(struct records){ "aab", NULL }, members, &g);
    assert_int_equal(hosts_create_layout(&g, &g.layout), TUTTI_OK);
    assert_int_equal(members_check_addresses(&g), TUTTI_OK);
    members[1].contact = *contact;
    assert_int_equal(members_check_addresses(&g), TUTTI_INVALID_ARGUMENT);
    if (!strstr(tutti_get_last_error(), why)) fail_msg("%s", tutti_get_last_error());
    layout_destroy(g.layout);
}
static void test_rank_without_a_reachable_address_is_an_error(void **state)
{
    (void)state;
    refuse_contact(&(struct sock_address){ .family = 0 },
        "cannot be reached from other hosts, but rank 2 (process 103 on node, 10.0.0.3:4711) of choir is on another "
        "one: it offers no address");
    refuse_contact(&(struct sock_address){ 2, 4711, 0, { 127, 0, 1, 1 } },
        "rank 1 (process 102 on node, 127.0.1.1:4711) cannot be reached from other hosts, but rank 2 (process 103 on "
        "node, 10.0.0.3:4711) of choir is on another one: it offers a loopback address");
}

/* ---- joining ---- */
static void create_refused(struct rank *me)
{
    struct {
        tutti_store store;
        const char *why;
        tutti_status status;
    } *c = me->context;
    tutti_comm *comm;
    tutti_config config = {
        .struct_size = sizeof config, .rank = me->rank, .size = me->size, .store = c->store, .timeout_ms = 5000
    };
    REQUIRE(tutti_comm_init(&comm, &config) == c->status);
    if (!strstr(tutti_get_last_error(), c->why)) fprintf(stderr, "%s\n", tutti_get_last_error());
    REQUIRE(strstr(tutti_get_last_error(), c->why) != NULL);
}
static void test_more_hosts_than_ranks_are_an_error(void **state)
{
    (void)state;
    struct {
        tutti_store store;
        const char *why;
        tutti_status status;
    } c = { world_store_create(), "TUTTI_HOSTS=3 is not a possible number of hosts; for 2 ranks",
        TUTTI_INVALID_ARGUMENT };
    world_pretend("3");
    for (int r = 0; r < 2; r++) create_refused(&(struct rank){ .rank = r, .size = 2, .context = &c });
    world_pretend("");
    world_store_destroy(c.store);
}
#ifndef NO_PROCESSES
/* A process has one setting, so each rank is a process. hosts[r] is the setting of rank r. Returns the number of ranks
   that did not get that status and piece of text. */
static int joined_with(const char *const *hosts, int size, tutti_status status, const char *why)
{
    tutti_unique_id id;
    int bad = 0;
    assert_int_equal(tutti_get_unique_id(&id), TUTTI_OK);
    for (int r = 0; r < size; r++) {
        pid_t child = fork();
        if (child) continue;
        tutti_comm *comm;
        alarm(600);
        world_pretend(hosts[r]);
        bool fine = tutti_comm_init_rank(&comm, size, id, r) == status && strstr(tutti_get_last_error(), why);
        if (!fine) fprintf(stderr, "rank %d: %s\n", r, tutti_get_last_error());
        _exit(!fine);
    }
    for (int r = 0, how; r < size; r++)
        if (wait(&how) < 0 || !WIFEXITED(how) || WEXITSTATUS(how) != 0) bad++;
    return bad;
}
static void test_different_settings_are_an_error_on_every_rank(void **state)
{
    (void)state;
    const char *why = "TUTTI_HOSTS must be the same on all ranks, or unset on all";
    assert_int_equal(joined_with((const char *[]){ "", "3", "" }, 3, TUTTI_MISMATCH, why), 0);
    assert_int_equal(joined_with((const char *[]){ "3", "3", "0,1,2" }, 3, TUTTI_MISMATCH, why), 0);
    assert_int_equal(joined_with((const char *[]){ "2", "", "" }, 3, TUTTI_MISMATCH, why), 0);
}
#endif

/* ---- the hosts of a group ---- */
static void expect_place(const tutti_comm *comm, int rank, int hosts, int host, int index)
{
    struct place p = layout_place(comm->group.layout, rank);
    REQUIRE(comm->group.layout->hosts == hosts && p.host == host && p.index == index);
}
/* The ranks are on hosts 0, 1, 0, 1 and 2. */
static void split_by_parity(struct rank *me)
{
    tutti_comm *half;
    expect_place(me->comm, 2, 3, 0, 1);
    expect_place(me->comm, 4, 3, 2, 0);
    REQUIRE(me->comm->executor.site.ranks == (me->rank == 4 ? 1 : 2));
    REQUIRE(tutti_comm_split(me->comm, me->rank % 2, 0, &half) == TUTTI_OK);
    /* Ranks 1 and 3 form a group on one host, and ranks 0, 2 and 4 one on two hosts. */
    if (me->rank % 2) expect_place(half, 1, 1, 0, 1);
    else expect_place(half, 2, 2, 1, 0);
    REQUIRE(group_has_several_hosts(&half->group) == (me->rank % 2 == 0));
    int32_t mine = me->rank, sum = 0;
    REQUIRE(tutti_all_reduce(&mine, &sum, 1, TUTTI_INT32, TUTTI_SUM, half, NULL) == TUTTI_OK);
    REQUIRE(sum == (me->rank % 2 ? 4 : 6));
    REQUIRE(tutti_comm_destroy(half) == TUTTI_OK);
}
static void test_split_group_has_the_hosts_of_its_ranks(void **state)
{
    (void)state;
    world_threads_on("0,1,0,1,2", 5, NULL, split_by_parity, NULL);
}
/* A group of some ranks of a job. */
struct job_part { tutti_store store; const int *job_ranks; int hosts; };
static void join_part(struct rank *me)
{
    const struct job_part *p = me->context;
    int32_t one = 1, sum = 0;
    tutti_comm *comm;
    tutti_config config = { .struct_size = sizeof config,
        .rank = me->rank,
        .size = me->size,
        .store = p->store,
        .job_rank = p->job_ranks[me->rank],
        .job_size = 4 };
    REQUIRE(tutti_comm_init(&comm, &config) == TUTTI_OK);
    REQUIRE(comm->group.layout->hosts == p->hosts);
    REQUIRE(tutti_all_reduce(&one, &sum, 1, TUTTI_INT32, TUTTI_SUM, comm, NULL) == TUTTI_OK && sum == me->size);
    REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
}
static void *part_main(void *rank)
{
    join_part(rank);
    return NULL;
}
static void make_part(const int *job_ranks, int size, int hosts)
{
    struct job_part part = { world_store_create(), job_ranks, hosts };
    struct rank ranks[MOST];
    pthread_t threads[MOST];
    for (int r = 0; r < size; r++) {
        ranks[r] = (struct rank){ .rank = r, .size = size, .context = &part };
        pthread_create(&threads[r], NULL, part_main, &ranks[r]);
    }
    for (int r = 0; r < size; r++) pthread_join(threads[r], NULL);
    world_store_destroy(part.store);
}
static void test_part_of_a_job_has_the_hosts_of_its_ranks(void **state)
{
    (void)state;
    world_pretend("0,1,0,1");
    make_part((int[]){ 1, 3 }, 2, 1);
    make_part((int[]){ 0, 1 }, 2, 2);
    make_part((int[]){ 2 }, 1, 1);
    make_part((int[]){ 3, 0, 1 }, 3, 2);
    world_pretend("");
    tutti_comm *comm;
    tutti_config config = { .struct_size = sizeof config, .size = 1, .job_rank = 4, .job_size = 4 };
    assert_int_equal(tutti_comm_init(&comm, &config), TUTTI_INVALID_ARGUMENT);
    assert_non_null(strstr(tutti_get_last_error(), "job_rank 4 of a job_size of 4: the rank must be at least 0"));
    config.job_rank = 2;
    config.members = (const int[]){ 3 };
    assert_int_equal(tutti_comm_init(&comm, &config), TUTTI_INVALID_ARGUMENT);
    assert_non_null(strstr(tutti_get_last_error(),
        "rank 0 of the group is rank 2 of the job, but its list of members has rank 3 there"));
    assert_true(tutti_last_error_is_refusal());
}
static void request_two_shot(struct rank *me)
{
    float x = 1, y = 0;
    tutti_request r = { .struct_size = sizeof r, .algorithm = "two_shot", .blocking = true };
    REQUIRE(tutti_all_reduce(&x, &y, 1, TUTTI_FLOAT32, TUTTI_SUM, me->comm, &r) == TUTTI_INVALID_ARGUMENT && r.refused);
    REQUIRE(strstr(tutti_get_last_error(),
                "allreduce by algorithm two_shot needs all ranks on one host, but those of "
                "choir are on 2")
        != NULL);
    REQUIRE(tutti_comm_set_algorithm(me->comm, "allreduce", "one_shot") == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_all_reduce(&x, &y, 1, TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL) == TUTTI_OK && y == 2);
}
static void test_algorithm_of_one_host_is_an_error_on_two(void **state)
{
    (void)state;
    tutti_config config = { .struct_size = sizeof config, .name = "choir" };
    world_threads_on("2", 2, &config, request_two_shot, NULL);
}

unit_function test_hosts;
int test_hosts(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_setting_is_a_number_of_hosts_or_a_list),
        cmocka_unit_test(test_invalid_setting_is_an_error),
        cmocka_unit_test(test_ranks_with_one_token_are_on_one_host),
        cmocka_unit_test(test_simulation_on_several_hosts_is_an_error),
        cmocka_unit_test(test_rank_without_a_reachable_address_is_an_error),
#ifndef NO_PROCESSES
        cmocka_unit_test(test_different_settings_are_an_error_on_every_rank),
#endif
        cmocka_unit_test(test_more_hosts_than_ranks_are_an_error),
        cmocka_unit_test(test_split_group_has_the_hosts_of_its_ranks),
        cmocka_unit_test(test_part_of_a_job_has_the_hosts_of_its_ranks),
        cmocka_unit_test(test_algorithm_of_one_host_is_an_error_on_two),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
