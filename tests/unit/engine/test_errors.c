/* Errors that users can cause: their status and text, the ranks that report them, and what they leave unchanged. */
#include "backend/base/settings.h"
#include "backend/engine/comm.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

static _Thread_local float one[64], other[64];
#define SAYS(text) REQUIRE(strstr(tutti_get_last_error(), text) != NULL)
#define REFUSES(text) REQUIRE(strstr(tutti_get_last_error(), text) != NULL && tutti_last_error_is_refusal())

/* ---- refused before anything is sent ---- */
static void wrong_arguments(struct rank *me)
{
    tutti_comm *c = me->comm;
    REQUIRE(tutti_all_reduce(one, other, 4, (tutti_dtype)77, TUTTI_SUM, c, NULL) == TUTTI_INVALID_ARGUMENT);
    REFUSES("unknown element type 77");
    REQUIRE(tutti_all_reduce(one, other, 4, TUTTI_FLOAT32, (tutti_op)77, c, NULL) == TUTTI_INVALID_ARGUMENT);
    REFUSES("unknown reduction operation 77");
    REQUIRE(tutti_all_reduce(one, other, 4, TUTTI_FLOAT32, TUTTI_BXOR, c, NULL) == TUTTI_INVALID_ARGUMENT);
    REFUSES("bxor of float32 elements is not defined");
    REQUIRE(tutti_all_reduce(one, other, 4, TUTTI_INT32, TUTTI_PREMUL_SUM, c, NULL) == TUTTI_INVALID_ARGUMENT);
    REFUSES("premul_sum of int32");
    REQUIRE(tutti_all_reduce(NULL, other, 4, TUTTI_FLOAT32, TUTTI_SUM, c, NULL) == TUTTI_INVALID_ARGUMENT);
    REFUSES("the send buffer is NULL, but must have 16 bytes");
    REQUIRE(tutti_all_reduce(one, NULL, 4, TUTTI_FLOAT32, TUTTI_SUM, c, NULL) == TUTTI_INVALID_ARGUMENT);
    REFUSES("the receive buffer is NULL");
    REQUIRE(tutti_all_reduce(one, other, SIZE_MAX / 2, TUTTI_FLOAT32, TUTTI_SUM, c, NULL) == TUTTI_INVALID_ARGUMENT);
    REFUSES("exceed the address space");
    REQUIRE(tutti_broadcast(one, one, 4, TUTTI_FLOAT32, 9, c, NULL) == TUTTI_INVALID_ARGUMENT);
    REFUSES("root 9 is not a rank of");
    REQUIRE(tutti_send(one, 4, TUTTI_FLOAT32, -3, 0, c, NULL) == TUTTI_INVALID_ARGUMENT);
    REFUSES("peer -3 is not a rank of");
    REQUIRE(tutti_all_to_all(one, one, 4, TUTTI_FLOAT32, c, NULL) == TUTTI_INVALID_ARGUMENT);
    REFUSES("cannot work in place");
    REQUIRE(tutti_all_reduce(one, other, 4, TUTTI_FLOAT32, TUTTI_SUM, NULL, NULL) == TUTTI_INVALID_ARGUMENT);
    REFUSES("the communicator is NULL");
    tutti_request r = { .struct_size = sizeof r, .algorithm = "rign", .blocking = true };
    REQUIRE(tutti_all_reduce(one, other, 4, TUTTI_FLOAT32, TUTTI_SUM, c, &r) == TUTTI_INVALID_ARGUMENT);
    REFUSES("unknown allreduce algorithm \"rign\", did you mean \"ring\"?");
    REQUIRE(r.refused);
    r.algorithm = "broadcast=chain,allreduce=rign";
    REQUIRE(tutti_all_reduce(one, other, 4, TUTTI_FLOAT32, TUTTI_SUM, c, &r) == TUTTI_INVALID_ARGUMENT);
    REFUSES("unknown allreduce algorithm \"rign\", did you mean \"ring\"?");
    /* This names no algorithm of the all-reduce. */
    r.algorithm = "broadcast=chain";
    REQUIRE(tutti_all_reduce(one, other, 4, TUTTI_FLOAT32, TUTTI_SUM, c, &r) == TUTTI_OK && !r.refused);
    r = (tutti_request){ .struct_size = sizeof(tutti_request), .blocking = true };
    REQUIRE(tutti_send(one, 4, TUTTI_FLOAT32, 77, 0, c, &r) == TUTTI_INVALID_ARGUMENT && r.refused);
    REFUSES("peer 77 is not a rank of");
    REQUIRE(tutti_comm_set_algorithm(c, "allreduse", "ring") == TUTTI_INVALID_ARGUMENT);
    REFUSES("unknown collective \"allreduse\", did you mean \"allreduce\"?");
    REQUIRE(tutti_comm_set_timeout(c, 0) == TUTTI_INVALID_ARGUMENT);
    REFUSES("it must be at least 1");
    REQUIRE(tutti_comm_set_name(c, NULL) == TUTTI_INVALID_ARGUMENT);
    REFUSES("the name is NULL");
    tutti_request labelled = { .struct_size = sizeof labelled, .label = 1, .factor = 1, .blocking = true };
    REQUIRE(tutti_send(one, 1, TUTTI_FLOAT32, 1 - me->rank, 0, c, &labelled) == TUTTI_INVALID_ARGUMENT);
    REFUSES("a send, a receive, a premul_sum and a norm cannot have a label");
    REQUIRE(tutti_all_reduce(one, other, 4, TUTTI_FLOAT32, TUTTI_PREMUL_SUM, c, &labelled) == TUTTI_INVALID_ARGUMENT);
    REFUSES("a send, a receive, a premul_sum and a norm cannot have a label");
    tutti_request unused = TUTTI_REQUEST_INIT;
    REQUIRE(tutti_wait(&unused, 0) == TUTTI_INVALID_ARGUMENT);
    REFUSES("never used");
    REQUIRE(tutti_group_end() == TUTTI_INVALID_ARGUMENT);
    REFUSES("without tutti_group_start");
    /* The communicator still works. */
    REQUIRE(tutti_all_reduce(one, other, 4, TUTTI_FLOAT32, TUTTI_SUM, c, NULL) == TUTTI_OK);
}
/* Overlapping buffers must be exactly in place. Calls with other overlaps are refused before a byte moves. */
static void overlapping(struct rank *me)
{
    tutti_comm *c = me->comm;
    char *a = (char *)one, *mine = a + 8 * me->rank;
    struct { tutti_status status; const char *says; } got[16];
    int n = 0;
#define CALL(call, text) got[n].says = text, got[n++].status = call; REQUIRE(strstr(tutti_get_last_error(), text))
    CALL(tutti_all_reduce(a, a + 4, 2, TUTTI_FLOAT32, TUTTI_SUM, c, NULL), "(send == recv);");
    CALL(tutti_all_reduce(a + 4, a, 2, TUTTI_FLOAT32, TUTTI_SUM, c, NULL), "allreduce on rank");
    if (me->rank == 0) {
        CALL(tutti_reduce(a, a + 4, 2, TUTTI_FLOAT32, TUTTI_SUM, 0, c, NULL), "reduce on rank 0");
        CALL(tutti_broadcast(a, a + 4, 2, TUTTI_FLOAT32, 0, c, NULL), "broadcast on rank 0");
        CALL(tutti_gather(a + 4, a, 2, TUTTI_FLOAT32, 0, c, NULL), "send == recv + rank * count");
        CALL(tutti_scatter(a, a + 4, 2, TUTTI_FLOAT32, 0, c, NULL), "recv == send + rank * count");
    }
    CALL(tutti_all_gather(mine + 4, a, 2, TUTTI_FLOAT32, c, NULL), "allgather on rank");
    CALL(tutti_reduce_scatter(a, mine + 4, 2, TUTTI_FLOAT32, TUTTI_SUM, c, NULL), "reduce_scatter on rank");
    CALL(tutti_all_to_all(a, a + 4, 2, TUTTI_FLOAT32, c, NULL), "cannot work in place");
#undef CALL
    for (int i = 0; i < n; i++) REQUIRE(got[i].status == TUTTI_INVALID_ARGUMENT);
    size_t counts[2] = { 1, 1 }, even[2] = { 0, 2 }, odd[2] = { 1, 3 };
    REQUIRE(tutti_all_to_all_v(one, counts, even, one, counts, even, TUTTI_FLOAT32, c, NULL) == TUTTI_INVALID_ARGUMENT);
    SAYS("overlap, and it cannot work in place");
    /* No two parts overlap here, so the call is allowed. */
    for (int i = 0; i < 4; i++) one[i] = (float)(10 * me->rank + i);
    REQUIRE(tutti_all_to_all_v(one, counts, even, one, counts, odd, TUTTI_FLOAT32, c, NULL) == TUTTI_OK);
    REQUIRE(one[1] == 2.f * (float)me->rank && one[3] == 10 + 2.f * (float)me->rank);
    REQUIRE(tutti_all_gather(mine, a, 2, TUTTI_FLOAT32, c, NULL) == TUTTI_OK);
    REQUIRE(tutti_reduce_scatter(a, mine, 2, TUTTI_FLOAT32, TUTTI_SUM, c, NULL) == TUTTI_OK);
}
static void test_overlap_that_is_not_in_place_is_refused(void **state)
{
    (void)state;
    world_threads(2, NULL, overlapping, NULL);
}
static void test_wrong_arguments_are_refused_and_harm_nothing(void **state)
{
    (void)state;
    world_threads(2, NULL, wrong_arguments, NULL);
    tutti_comm *comm;
    tutti_config config = { .struct_size = sizeof config, .rank = 3, .size = 2 };
    assert_int_equal(tutti_comm_init(&comm, &config), TUTTI_INVALID_ARGUMENT);
    assert_true(tutti_last_error_is_refusal());
    config.rank = 0;
    assert_int_equal(tutti_comm_init(&comm, &config), TUTTI_INVALID_ARGUMENT);
    assert_non_null(strstr(tutti_get_last_error(), "needs a store"));
    config = (tutti_config){ .struct_size = sizeof(tutti_config), .size = 1, .algorithm = "allreduce:ring" };
    assert_int_equal(tutti_comm_init(&comm, &config), TUTTI_INVALID_ARGUMENT);
    assert_non_null(strstr(tutti_get_last_error(), "should read collective=algorithm"));
    assert_true(tutti_last_error_is_refusal());
    assert_null(comm);
    assert_int_equal(tutti_comm_destroy(NULL), TUTTI_OK);
}

/* ---- disagreement ---- */
struct pair { const char *here, *there; int kind; };
static tutti_status disagree(struct rank *me, int kind)
{
    bool odd = me->rank == 1;
    tutti_request tree = { .struct_size = sizeof tree, .algorithm = odd ? "tree" : NULL, .blocking = true };
    tutti_request ring = { .struct_size = sizeof ring, .algorithm = odd ? "ring" : "one_shot", .blocking = true };
    tutti_request factor = { .struct_size = sizeof factor, .factor = odd ? 2 : 3, .blocking = true };
    tutti_request label = { .struct_size = sizeof label, .label = odd ? 7 : 0, .blocking = true };
    switch (kind) {
    case 0:
        return odd ? tutti_broadcast(one, other, 8, TUTTI_FLOAT32, 1, me->comm, NULL)
                   : tutti_all_reduce(one, other, 8, TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL);
    case 1: return tutti_all_reduce(one, other, odd ? 8 : 9, TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL);
    case 2: return tutti_all_reduce(one, other, 8, odd ? TUTTI_FLOAT32 : TUTTI_INT32, TUTTI_SUM, me->comm, NULL);
    case 3: return tutti_broadcast(one, other, 8, TUTTI_FLOAT32, odd, me->comm, NULL);
    case 4: return tutti_all_reduce(one, other, 8, TUTTI_FLOAT32, odd ? TUTTI_MAX : TUTTI_SUM, me->comm, NULL);
    case 5: return tutti_all_reduce(one, other, 8, TUTTI_FLOAT32, TUTTI_SUM, me->comm, &ring);
    case 6:
        return odd ? tutti_barrier(me->comm, NULL)
                   : tutti_all_reduce(one, other, 60, TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL);
    case 7: return tutti_barrier(me->comm, &tree);
    case 9: return tutti_all_gather(one, other, 8, TUTTI_FLOAT32, me->comm, &label);
    default: return tutti_all_reduce(one, other, 8, TUTTI_FLOAT32, TUTTI_PREMUL_SUM, me->comm, &factor);
    }
}
/* A rank that needs no rank whose call differs (a root that only sends, and a rank that reads from it) may complete.
   Then its next call reports the mismatch. */
static void disagreement(struct rank *me)
{
    const struct pair *p = me->context;
    for (int i = 0; i < 64; i++) other[i] = 5;
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    tutti_status status = disagree(me, p->kind);
    bool needs_none = (p->kind == 0 && me->rank == 1) || p->kind == 3;
    if (needs_none && status == TUTTI_OK) {
        status = tutti_barrier(me->comm, NULL);
        /* The operation may have written these. */
        for (int i = 0; i < 64; i++) other[i] = 5;
    }
    REQUIRE(status == TUTTI_MISMATCH);
    REQUIRE(!tutti_last_error_is_refusal());
    SAYS(p->here);
    SAYS(p->there);
    SAYS("operation 2 of");
    /* No output was written. */
    for (int i = 0; i < 64; i++) REQUIRE(other[i] == 5);
    /* A call that would be refused reports the failure instead. */
    REQUIRE(tutti_send(one, 1, TUTTI_FLOAT32, 99, 0, me->comm, NULL) == TUTTI_MISMATCH);
    REQUIRE(!tutti_last_error_is_refusal());
    /* Every later call reports the same. */
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_MISMATCH);
    SAYS(p->here);
    REQUIRE(tutti_comm_get_async_error(me->comm) == TUTTI_MISMATCH);
}
static void test_ranks_that_disagree_report_both_calls(void **state)
{
    (void)state;
    static struct pair pairs[] = {
        { "allreduce(8 x float32, sum", "broadcast(8 x float32, root 1", 0 },
        { "allreduce(8 x", "allreduce(9 x", 1 },
        { "8 x float32", "8 x int32", 2 },
        { "root 0", "root 1", 3 },
        { "float32, sum", "float32, max", 4 },
        { "algorithm ring", "algorithm one_shot", 5 },
        { "barrier", "allreduce(60 x float32", 6 },
        { "barrier by algorithm tree", "barrier by algorithm read", 7 },
        { "factor 2", "factor 3", 8 },
        { "label 7", "allgather", 9 },
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (int size = 2; size <= 4; size += 2) world_threads(size, NULL, disagreement, &pairs[i]);
}
static const struct {
    const char *hosts;
    int size;
} placements[] = { { "2", 2 }, { "0,1,0", 3 }, { "0,1,0,1", 4 } };
enum { PLACEMENTS = sizeof placements / sizeof *placements };
/* A rank that needs no rank of another host (a root that only sends, and a rank that reads from it) may complete before
   it can detect the mismatch. Then its next call reports it. */
static void disagreement_of_hosts(struct rank *me)
{
    const struct pair *p = me->context;
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    world_meet(me);
    tutti_status status = disagree(me, p->kind);
    bool waits_for_none = (p->kind == 0 && me->rank == 1) || p->kind == 3;
    REQUIRE(status == TUTTI_MISMATCH || (waits_for_none && status == TUTTI_OK));
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_MISMATCH);
    SAYS(p->here);
    SAYS(p->there);
    SAYS("operation 2 of");
}
static void test_hosts_that_disagree_report_both_calls(void **state)
{
    (void)state;
    static struct pair pairs[] = {
        { "allreduce(8 x float32, sum", "broadcast(8 x float32, root 1", 0 },
        { "allreduce(8 x", "allreduce(9 x", 1 },
        { "8 x float32", "8 x int32", 2 },
        { "root 0", "root 1", 3 },
        { "float32, sum", "float32, max", 4 },
        { "barrier", "allreduce(60 x float32", 6 },
        { "factor 2", "factor 3", 8 },
        { "label 7", "allgather", 9 },
    };
    for (size_t p = 0; p < PLACEMENTS; p++)
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
            world_threads_on(placements[p].hosts, placements[p].size, NULL, disagreement_of_hosts, &pairs[i]);
}
static void uneven_counts(struct rank *me)
{
    size_t out[3] = { 2, 3, 4 }, in[3], at[3] = { 0, 8, 16 };
    for (int q = 0; q < 3; q++) in[q] = (size_t)me->rank + 2;
    if (me->rank == 2) in[1] = 7;
    REQUIRE(tutti_all_to_all_v(one, out, at, other, in, at, TUTTI_FLOAT32, me->comm, NULL) == TUTTI_MISMATCH);
    SAYS("rank 1 sends 4 elements to rank 2, which expects 7");
}
static void test_uneven_counts_that_do_not_match_are_reported(void **state)
{
    (void)state;
    world_threads(3, NULL, uneven_counts, NULL);
}

/* ---- time ---- */
/* A rank of another host is named if its host answers within a quarter of the timeout. */
#ifdef FEW
enum { LATE_MS = 4000 };
#define LATE_TEXT "reached the timeout of 4000 ms"
#else
enum { LATE_MS = 500 };
#define LATE_TEXT "reached the timeout of 500 ms"
#endif
static void one_is_missing(struct rank *me)
{
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    world_meet(me);
    if (me->rank == 1) {
        while (tutti_comm_get_async_error(me->comm) == TUTTI_OK) usleep(1000);
    }
    tutti_request r = { .struct_size = sizeof r, .timeout_ms = LATE_MS, .blocking = true };
    REQUIRE(tutti_all_reduce(one, other, 4, TUTTI_FLOAT32, TUTTI_SUM, me->comm, &r) == TUTTI_TIMEOUT);
    SAYS(LATE_TEXT);
    SAYS("this call has not been made by rank 1");
}
static void test_a_timeout_names_the_missing_rank_on_every_rank(void **state)
{
    (void)state;
    world_threads(2, NULL, one_is_missing, NULL);
}
/* Ranks 0 and 1 have failed the operation before rank 2 begins it. */
static void comes_late(struct rank *me)
{
    /* The calls have 2 elements (8 B) or COUNT (1 MiB). */
    enum { COUNT = 1 << 18 };
    static float data[3][COUNT];
    static _Atomic int failed;
    for (int round = 1; round <= 4; round++) {
        tutti_comm *comm;
        float *mine = data[me->rank];
        size_t count = round % 2 ? 2 : COUNT;
        tutti_request r = { .struct_size = sizeof r, .timeout_ms = 300, .blocking = round <= 2 };
        REQUIRE(tutti_comm_split(me->comm, 0, me->rank, &comm) == TUTTI_OK);
        REQUIRE(tutti_barrier(comm, NULL) == TUTTI_OK);
        mine[0] = 1;
        if (me->rank == 2)
            while (atomic_load(&failed) < 2 * round) usleep(1000);
        tutti_status status = tutti_all_reduce(mine, mine, count, TUTTI_FLOAT32, TUTTI_SUM, comm, &r);
        if (!r.blocking && status == TUTTI_OK) status = tutti_wait(&r, 0);
        REQUIRE(status == TUTTI_TIMEOUT);
        SAYS("this call has not been made by rank 2");
        REQUIRE(mine[0] == 1);
        atomic_fetch_add(&failed, 1);
        REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
        REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
        if (me->rank == 2) atomic_store(&failed, 2 * round);
        REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    }
}
static void test_a_late_rank_does_not_succeed(void **state)
{
    (void)state;
    world_threads(3, NULL, comes_late, NULL);
}
/* Ranks 0 and 1 reach their timeouts at the same time, and rank 2 arrives. Rank 0 has claimed the failure (the test
   does this for it), finds that all ranks have arrived, and withdraws its claim. But rank 1 has failed the operation
   meanwhile, and all ranks must report that. */
static void two_reach_their_timeout(struct rank *me)
{
    static _Atomic int ready;
    static _Atomic bool rank_1_has_failed;
    int32_t summand = 1, sum = 0;
    tutti_request r = { .struct_size = sizeof r, .timeout_ms = me->rank == 1 ? 50 : 20000, .blocking = true };
    _Atomic uint32_t *state = &me->comm->group.segment->failure->state;
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    atomic_fetch_add(&ready, 1);
    while (me->rank == 0 && atomic_load(&ready) < 3) usleep(1000);
    if (me->rank == 0) atomic_fetch_add(state, FAILURE_CLAIM);
    if (me->rank != 1)
        while (!atomic_load(&rank_1_has_failed)) usleep(1000);
    if (me->rank == 0) atomic_fetch_sub(state, FAILURE_CLAIM);
    REQUIRE(tutti_all_reduce(&summand, &sum, 1, TUTTI_INT32, TUTTI_SUM, me->comm, &r) == TUTTI_TIMEOUT);
    if (me->rank != 1) SAYS("rank 1 failed the group");
    atomic_store(&rank_1_has_failed, true);
}
static void test_a_failure_is_reported_although_another_rank_withdraws_its_claim(void **state)
{
    (void)state;
    world_threads(3, NULL, two_reach_their_timeout, NULL);
}
static void wait_with_timeout(struct rank *me)
{
    tutti_request r = TUTTI_REQUEST_INIT;
    float data;
    if (me->rank == 0) {
        REQUIRE(tutti_recv(&data, 1, TUTTI_FLOAT32, 1, 9, me->comm, &r) == TUTTI_OK);
        REQUIRE(tutti_test(&r) == TUTTI_IN_PROGRESS);
        REQUIRE(tutti_wait(&r, 50) == TUTTI_TIMEOUT);
        SAYS("receive from rank 1 with tag 9 reached the timeout of 50 ms");
    } else
        while (tutti_comm_get_async_error(me->comm) == TUTTI_OK) usleep(1000);
}
static void test_a_wait_can_time_out(void **state)
{
    (void)state;
    world_threads(2, NULL, wait_with_timeout, NULL);
}
static void test_a_rank_that_never_joins_is_named(void **state)
{
    (void)state;
    tutti_comm *comm;
    tutti_store store = world_store_create();
    tutti_config config = {
        .struct_size = sizeof config, .size = 2, .store = store, .timeout_ms = 100, .name = "group 0"
    };
    assert_int_equal(tutti_comm_init(&comm, &config), TUTTI_TIMEOUT);
    assert_non_null(strstr(tutti_get_last_error(), "rank 1 of 2 has not joined group 0 within 100 ms"));
    config.name = NULL;
    assert_int_equal(tutti_comm_init(&comm, &config), TUTTI_TIMEOUT);
    assert_non_null(strstr(tutti_get_last_error(), "rank 1 of 2 has not joined the group within 100 ms"));
    world_store_destroy(store);
}

static void test_a_setting_that_is_refused_is_named(void **state)
{
    (void)state;
    tutti_comm *comm;
    tutti_config config = { .struct_size = sizeof config, .size = 1 };
    setenv("TUTTI_ALGORITHM", "foo=bar", 1);
    settings_reload();
    assert_int_equal(tutti_comm_init(&comm, &config), TUTTI_INVALID_ARGUMENT);
    assert_non_null(strstr(tutti_get_last_error(), "TUTTI_ALGORITHM=foo=bar: unknown collective \"foo\""));
    unsetenv("TUTTI_ALGORITHM");
    settings_reload();
}

/* ---- leaving ---- */
static void aborts(struct rank *me)
{
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    world_meet(me);
    if (me->rank == 0) REQUIRE(tutti_comm_abort(me->comm) == TUTTI_OK);
    REQUIRE(tutti_all_reduce(one, other, 4, TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL) == TUTTI_ABORTED);
    SAYS("by rank 0");
}
/* Two ranks see different causes at once, as after two deaths. */
static void both_fail(struct rank *me)
{
    static _Atomic int has_failed;
    if (me->rank == 1)
        while (!atomic_load(&has_failed)) sleep_us(50);
    REQUIRE(comm_fail(me->comm, TUTTI_PEER_LOST, "cause %d", me->rank) == TUTTI_PEER_LOST);
    SAYS("cause 0");
    REQUIRE(me->rank == 0 || strstr(tutti_get_last_error(), "rank 0 failed the group: "));
    if (me->rank == 0) atomic_store(&has_failed, 1);
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_PEER_LOST);
    SAYS("cause 0");
}
static void test_all_ranks_report_the_first_error(void **state)
{
    (void)state;
    world_threads(2, NULL, both_fail, NULL);
}
/* If a rank has died while it wrote its record, the others report their own causes. */
static void first_dies_early(struct rank *me)
{
    if (me->rank == 1) return;
    atomic_fetch_or(&me->comm->group.segment->failure->state, FAILURE_TELLING);
    REQUIRE(comm_fail(me->comm, TUTTI_PEER_LOST, "cause %d", me->rank) == TUTTI_PEER_LOST);
    SAYS("cause 0");
}
static void test_an_incomplete_record_is_not_awaited(void **state)
{
    (void)state;
    world_threads(2, NULL, first_dies_early, NULL);
}
static void test_an_abort_reaches_all_ranks(void **state)
{
    (void)state;
    world_threads(3, NULL, aborts, NULL);
}
static void leaves_early(struct rank *me)
{
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    world_meet(me);
    if (me->rank == 1) return;
    REQUIRE(tutti_all_reduce(one, other, 4, TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL) == TUTTI_PEER_LOST);
    SAYS("rank 1 of the group has ended or destroyed its group");
}
static void test_a_rank_that_has_left_is_named(void **state)
{
    (void)state;
    world_threads(2, NULL, leaves_early, NULL);
}
/* ---- the same between hosts: rank 1 is on the second host ---- */
static void test_a_failure_of_one_rank_is_reported_on_all_hosts(void **state)
{
    (void)state;
    rank_function *const what[] = { one_is_missing, aborts, leaves_early };
    for (size_t p = 0; p < PLACEMENTS; p++)
        for (size_t i = 0; i < sizeof what / sizeof *what; i++)
            world_threads_on(placements[p].hosts, placements[p].size, NULL, what[i], NULL);
}
static void test_destroy_does_not_wait_for_open_operations(void **state)
{
    (void)state;
    static tutti_request r;
    tutti_comm *comm;
    tutti_config config = { .struct_size = sizeof config, .size = 1 };
    float never;
    assert_int_equal(tutti_comm_init(&comm, &config), TUTTI_OK);
    r = (tutti_request)TUTTI_REQUEST_INIT;
    assert_int_equal(tutti_recv(&never, 1, TUTTI_FLOAT32, 0, 0, comm, &r), TUTTI_OK);
    assert_int_equal(tutti_comm_destroy(comm), TUTTI_OK);
}
unit_function test_errors;
int test_errors(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_arguments_are_refused_and_harm_nothing),
        cmocka_unit_test(test_a_failure_of_one_rank_is_reported_on_all_hosts),
        cmocka_unit_test(test_overlap_that_is_not_in_place_is_refused),
        cmocka_unit_test(test_ranks_that_disagree_report_both_calls),
        cmocka_unit_test(test_hosts_that_disagree_report_both_calls),
        cmocka_unit_test(test_uneven_counts_that_do_not_match_are_reported),
        cmocka_unit_test(test_a_timeout_names_the_missing_rank_on_every_rank),
        cmocka_unit_test(test_a_late_rank_does_not_succeed),
        cmocka_unit_test(test_a_failure_is_reported_although_another_rank_withdraws_its_claim),
        cmocka_unit_test(test_a_wait_can_time_out),
        cmocka_unit_test(test_a_rank_that_never_joins_is_named),
        cmocka_unit_test(test_a_setting_that_is_refused_is_named),
        cmocka_unit_test(test_all_ranks_report_the_first_error),
        cmocka_unit_test(test_an_incomplete_record_is_not_awaited),
        cmocka_unit_test(test_an_abort_reaches_all_ranks),
        cmocka_unit_test(test_a_rank_that_has_left_is_named),
        cmocka_unit_test(test_destroy_does_not_wait_for_open_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
