/* Ranks on several hosts that have links: each maps only the memory of its host, and no rank continues before all have
   joined. The hosts are simulated, and inproc is the network. */
#include "backend/base/clock.h"
#include "backend/base/settings.h"
#include "backend/control/lifetime.h"
#include "backend/engine/comm.h"
#include "backend/join/interface.h"
#include "tests/support/inproc.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"

enum { LATE_MS = 300, MOST_RANKS = 8 };
static struct inproc_options options = { .seed = 1, .delay = 200, .in_time = true, .budget = 4 };
static tutti_status join_inproc(struct router *router) { return inproc_world_join(&options, router); }
static void use_links(network_connect *connect)
{
    struct identity mine;
    const struct sock_address here = { .family = 2, .address = { 127, 0, 0, 1 } };
    struct sock_address found;
    assert_int_equal(peers_acquire(&mine), TUTTI_OK);
    tutti_status status = links_listen(&here, &found);
    peers_release();
    if (status == TUTTI_UNSUPPORTED) { print_message("skipped: %s\n", tutti_get_last_error()); skip(); }
    setenv("TUTTI_TRANSPORT", "ucx", 1);
    messages_override_network(connect);
}

/* ---- all ranks join ---- */
static void check_and_sum(struct rank *me)
{
    int32_t mine = me->rank + 1, sum = 0;
    const struct group *g = &me->comm->group;
    REQUIRE(!g->network && group_uses_links(g) && strcmp(g->interface, "lo") == 0);
    REQUIRE(g->segment->ranks == layout_host_size(g->layout, g->host));
    REQUIRE(tutti_all_reduce(&mine, &sum, 1, TUTTI_INT32, TUTTI_SUM, me->comm, NULL) == TUTTI_OK);
    REQUIRE(sum == me->size * (me->size + 1) / 2);
    struct machine theirs[MOST_RANKS], *ours = &me->comm->launcher.chooser.machine;
    REQUIRE(tutti_all_gather(ours, theirs, sizeof *ours, TUTTI_UINT8, me->comm, NULL) == TUTTI_OK);
    /* All ranks have the same parameters, so they choose the same algorithms. */
    for (int r = 0; r < me->size; r++) REQUIRE(memcmp(&theirs[r], ours, sizeof *ours) == 0);
}
static void test_ranks_of_any_hosts_join(void **state)
{
    (void)state;
    use_links(join_inproc);
    const char *const hosts[] = { "2", "3", "5", "7", "8" };
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) world_threads_on(hosts[i], 8, NULL, check_and_sum, NULL);
    world_threads_on("0,1,0", 3, NULL, check_and_sum, NULL);
    world_threads_on("2,0,0,1,2,0", 6, NULL, check_and_sum, NULL);
}
/* The ranks are on hosts 0, 1, 0, 1 and 2. */
static void split_by_parity(struct rank *me)
{
    tutti_comm *half;
    int32_t mine = me->rank, sum = 0;
    REQUIRE(tutti_comm_split(me->comm, me->rank % 2, 0, &half) == TUTTI_OK);
    /* The odd ranks are on one host. */
    REQUIRE(group_uses_links(&half->group) == (me->rank % 2 == 0));
    REQUIRE(tutti_all_reduce(&mine, &sum, 1, TUTTI_INT32, TUTTI_SUM, half, NULL) == TUTTI_OK);
    REQUIRE(sum == (me->rank % 2 ? 4 : 6));
    REQUIRE(tutti_comm_destroy(half) == TUTTI_OK);
}
static void test_split_group_inherits_hosts_and_contacts(void **state)
{
    (void)state;
    use_links(join_inproc);
    world_threads_on("0,1,0,1,2", 5, NULL, split_by_parity, NULL);
}
/* Rank 3 joins LATE_MS after the others. */
static tutti_status join_late(struct router *router)
{
    if (router->rank == 3) sleep_us(LATE_MS * 1000);
    return inproc_world_join(&options, router);
}
static void record_time(struct rank *me)
{
    int64_t *began_ms = me->context;
    REQUIRE(clock_ms() - *began_ms >= LATE_MS);
}
static void test_no_rank_continues_before_all_have_joined(void **state)
{
    (void)state;
    use_links(join_late);
    int64_t began_ms = clock_ms();
    world_threads_on("0,0,1,1,2,2,3", 7, NULL, record_time, &began_ms);
}

/* ---- errors ---- */
/* A transport that delivers no messages. */
static void silent_send(struct transport *t, int member, struct transfer *x) { (void)t, (void)member, (void)x; }
static bool silent_poll(struct transport *t)
{
    (void)t;
    return false;
}
static bool silent_cancel(struct transport *t, int member, struct transfer *x)
{
    (void)t, (void)member, (void)x;
    return true;
}
static void silent_lose_peer(struct transport *t, int member, tutti_status status)
{
    (void)t, (void)member, (void)status;
}
static void silent_destroy(struct transport *t) { free(t); }
static const struct transport_operations silent = { .name = "silent",
    .send = silent_send,
    .poll = silent_poll,
    .cancel = silent_cancel,
    .lose = silent_lose_peer,
    .destroy = silent_destroy };
static tutti_status join_silent_network(struct router *router)
{
    struct transport *t = calloc(1, sizeof *t);
    t->operations = &silent;
    t->router = router;
    router_add_transport(router, t, NULL, router->size);
    return TUTTI_OK;
}
struct attempt { tutti_config config; pthread_t thread; char text[1024]; tutti_status status; };
static void *attempt_main(void *context)
{
    struct attempt *a = context;
    tutti_comm *comm;
    a->status = tutti_comm_init(&comm, &a->config);
    snprintf(a->text, sizeof a->text, "%s", tutti_get_last_error());
    return NULL;
}
static void attempt_all(struct attempt attempts[4], const char *hosts, int64_t timeout_ms)
{
    tutti_store store = world_store_create();
    world_pretend(hosts);
    for (int r = 0; r < 4; r++) {
        tutti_config *config = &attempts[r].config;
        *config = (tutti_config){ .struct_size = sizeof *config, .rank = r, .size = 4, .store = store };
        config->name = "choir";
        config->timeout_ms = timeout_ms;
        pthread_create(&attempts[r].thread, NULL, attempt_main, &attempts[r]);
    }
    for (int r = 0; r < 4; r++) pthread_join(attempts[r].thread, NULL);
    world_pretend("");
    world_store_destroy(store);
}
static void test_ranks_that_get_no_messages_are_named(void **state)
{
    (void)state;
    struct attempt attempts[4] = { 0 };
    use_links(join_silent_network);
    attempt_all(attempts, "2", 2500);
    for (int r = 0; r < 4; r++) {
        const char *text = attempts[r].text;
        bool fine = attempts[r].status == TUTTI_TIMEOUT && strstr(text, "of choir has a link with rank ")
            && strstr(text, "(process ") && strstr(text, "127.0.0.1:") && strstr(text, "a firewall")
            && strstr(text, "received its report that it has joined");
        if (!fine) fail_msg("rank %d: %d %s", r, attempts[r].status, text);
    }
}
static tutti_status refuse_rank_3(struct router *router)
{
    if (router->rank == 3) return status_fail(TUTTI_UNSUPPORTED, "there is no network on this floor");
    return inproc_world_join(&options, router);
}
static void test_rank_without_network_fails_all(void **state)
{
    (void)state;
    struct attempt attempts[4] = { 0 };
    use_links(refuse_rank_3);
    attempt_all(attempts, "0,1,1,1", 0);
    for (int r = 0; r < 4; r++) {
        bool fine = attempts[r].status == TUTTI_UNSUPPORTED && strstr(attempts[r].text, "no network on this floor");
        if (!fine) fail_msg("rank %d: %d %s", r, attempts[r].status, attempts[r].text);
    }
}
static void test_unknown_transport_is_an_error(void **state)
{
    (void)state;
    tutti_comm *comm;
    tutti_config config = { .struct_size = sizeof config, .size = 1 };
    setenv("TUTTI_TRANSPORT", "ucz", 1);
    settings_reload();
    assert_int_equal(tutti_comm_init(&comm, &config), TUTTI_INVALID_ARGUMENT);
    assert_non_null(strstr(tutti_get_last_error(),
        "TUTTI_TRANSPORT=ucz: unknown transport \"ucz\", did you mean ucx?; known are ucx, verbs"));
    setenv("TUTTI_TRANSPORT", "tcp,uc", 1);
    settings_reload();
    assert_int_equal(tutti_comm_init(&comm, &config), TUTTI_INVALID_ARGUMENT);
    assert_non_null(strstr(tutti_get_last_error(), "TUTTI_TRANSPORT=tcp,uc: unknown transport \"uc\", did you mean"));
    setenv("TUTTI_TRANSPORT", "tcp,ucx", 1);
    settings_reload();
    assert_int_equal(tutti_comm_init(&comm, &config), TUTTI_OK);
    assert_int_equal(tutti_comm_destroy(comm), TUTTI_OK);
}
static int restore_settings(void **state)
{
    (void)state;
    unsetenv("TUTTI_TRANSPORT");
    messages_override_network(NULL);
    settings_reload();
    return 0;
}

unit_function test_host_barrier;
int test_host_barrier(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_ranks_of_any_hosts_join, restore_settings),
        cmocka_unit_test_teardown(test_split_group_inherits_hosts_and_contacts, restore_settings),
        cmocka_unit_test_teardown(test_no_rank_continues_before_all_have_joined, restore_settings),
        cmocka_unit_test_teardown(test_ranks_that_get_no_messages_are_named, restore_settings),
        cmocka_unit_test_teardown(test_rank_without_network_fails_all, restore_settings),
        cmocka_unit_test_teardown(test_unknown_transport_is_an_error, restore_settings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
