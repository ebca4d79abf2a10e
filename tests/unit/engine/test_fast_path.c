/* The fast path: a small call that equals the one before runs without becoming an operation. Its results are right
   whichever rank is late, other calls in between take effect, and failures are reported as for other calls. */
#include "backend/engine/comm.h"
#include "tests/support/random.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#define SAYS(text) REQUIRE(strstr(tutti_get_last_error(), text) != NULL)
enum { COUNT = 2, MOST_RANKS = 4, SECONDS = 30 };
struct tensors { int32_t in[COUNT * MOST_RANKS], out[COUNT * MOST_RANKS]; };

/* Returns whether the next call may take the fast path. */
static bool is_settled(const struct rank *me) { return atomic_load(&me->comm->submission.fast_path_ready); }
static tutti_status call(const struct rank *me, enum collective collective, size_t count, int root, struct tensors *t)
{
    tutti_comm *c = me->comm;
    switch (collective) {
    case ALLREDUCE: return tutti_all_reduce(t->in, t->out, count, TUTTI_INT32, TUTTI_SUM, c, NULL);
    case REDUCE: return tutti_reduce(t->in, t->out, count, TUTTI_INT32, TUTTI_MAX, root, c, NULL);
    case BROADCAST: return tutti_broadcast(t->in, t->out, count, TUTTI_INT32, root, c, NULL);
    case REDUCE_SCATTER: return tutti_reduce_scatter(t->in, t->out, count, TUTTI_INT32, TUTTI_SUM, c, NULL);
    case ALLGATHER: return tutti_all_gather(t->in, t->out, count, TUTTI_INT32, c, NULL);
    case ALL_TO_ALL: return tutti_all_to_all(t->in, t->out, count, TUTTI_INT32, c, NULL);
    case GATHER: return tutti_gather(t->in, t->out, count, TUTTI_INT32, root, c, NULL);
    case SCATTER: return tutti_scatter(t->in, t->out, count, TUTTI_INT32, root, c, NULL);
    default: return tutti_barrier(c, NULL);
    }
}
/* Element i of what a rank sends in a call. */
static int32_t sent_element(int call, int rank, int i) { return 1000 * call + 100 * rank + i; }
static int32_t expected_element(enum collective collective, const struct rank *me, int call, int root, int i)
{
    int mine = me->rank * COUNT + i, from = i / COUNT, sum = 0;
    int at = collective == REDUCE_SCATTER ? mine : i;
    for (int r = 0; r < me->size; r++) sum += sent_element(call, r, at);
    switch (collective) {
    case ALLREDUCE:
    case REDUCE_SCATTER: return sum;
    case REDUCE: return sent_element(call, me->size - 1, i);
    case BROADCAST: return sent_element(call, root, i);
    case SCATTER: return sent_element(call, root, mine);
    case ALL_TO_ALL: return sent_element(call, from, me->rank * COUNT + i % COUNT);
    /* ALLGATHER and GATHER. */
    default: return sent_element(call, from, i % COUNT);
    }
}
static void run_and_check(const struct rank *me, enum collective collective, int number, int root, struct tensors *t)
{
    int parts = collective_count_chunks(collective, OUTPUT, me->size);
    for (int i = 0; i < COUNT * MOST_RANKS; i++) t->in[i] = sent_element(number, me->rank, i);
    REQUIRE(call(me, collective, COUNT, root, t) == TUTTI_OK);
    if (collective == BARRIER || !collective_has_buffer(collective, root, me->rank, OUTPUT)) return;
    for (int i = 0; i < COUNT * parts; i++) REQUIRE(t->out[i] == expected_element(collective, me, number, root, i));
}
static void settle_in(int calls, const struct rank *me, enum collective collective, struct tensors *t)
{
    for (int i = 0; i < calls; i++) run_and_check(me, collective, i, 0, t);
    REQUIRE(is_settled(me));
}
/* Repeats a call until all declarations that a rank keeps are equal. */
static void declarations_settle(const struct rank *me, enum collective collective, struct tensors *t)
{
    settle_in(DECLARATIONS + 8, me, collective, t);
}

/* ---- results ---- */
static void come_late(uint64_t *mine)
{
    if (random_next(mine) % 20 == 0) usleep((unsigned)(random_next(mine) % 300));
}
static void runs_all(struct rank *me)
{
    static _Thread_local struct tensors tensors;
    uint64_t mine = (uint64_t)me->rank + 1;
    for (int collective = ALLREDUCE; collective <= BARRIER; collective++)
        for (int root = 0; root < me->size; root += me->size > 1 ? me->size - 1 : 1) {
            for (int i = 0; i < 6 * DECLARATIONS; i++) {
                come_late(&mine);
                run_and_check(me, (enum collective)collective, i, root, &tensors);
            }
            REQUIRE(is_settled(me));
        }
}
static void test_results_are_right_whichever_rank_is_late(void **state)
{
    (void)state;
    for (int size = 1; size <= MOST_RANKS; size++) world_threads(size, NULL, runs_all, NULL);
}

/* ---- calls in between ---- */
static void call_in_between(const struct rank *me, int which, int number, struct tensors *t)
{
    static _Thread_local struct tensors others;
    int32_t message = number, peer = (me->rank + 1) % 2;
    tutti_request request = TUTTI_REQUEST_INIT;
    switch (which) {
    case 0: run_and_check(me, ALLREDUCE, number, 0, &others); break;
    case 1: run_and_check(me, BROADCAST, number, 1, t); break;
    case 2: REQUIRE(tutti_all_reduce(t->in, t->out, 1, TUTTI_INT32, TUTTI_SUM, me->comm, NULL) == TUTTI_OK); break;
    case 3: REQUIRE(tutti_all_reduce(t->in, t->out, COUNT, TUTTI_INT32, TUTTI_MAX, me->comm, NULL) == TUTTI_OK); break;
    case 4: REQUIRE(tutti_all_reduce(t->in, t->out, COUNT, TUTTI_UINT8, TUTTI_SUM, me->comm, NULL) == TUTTI_OK); break;
    case 5:
        REQUIRE(tutti_send(&message, 1, TUTTI_INT32, peer, 1, me->comm, &request) == TUTTI_OK);
        REQUIRE(tutti_recv(&message, 1, TUTTI_INT32, peer, 1, me->comm, NULL) == TUTTI_OK && message == number);
        REQUIRE(tutti_wait(&request, 0) == TUTTI_OK);
        break;
    default:
        t->in[0] = 7;
        REQUIRE(tutti_all_reduce(t->in, t->out, COUNT, TUTTI_INT32, TUTTI_SUM, me->comm, &request) == TUTTI_OK);
        REQUIRE(tutti_wait(&request, 0) == TUTTI_OK && t->out[0] == 7 * me->size);
    }
}
static void runs_others(struct rank *me)
{
    static _Thread_local struct tensors tensors;
    for (int which = 0; which <= 6; which++) {
        declarations_settle(me, ALLREDUCE, &tensors);
        call_in_between(me, which, which, &tensors);
        for (int i = 0; i < 4; i++) run_and_check(me, ALLREDUCE, i, 0, &tensors);
    }
    declarations_settle(me, ALLREDUCE, &tensors);
    REQUIRE(tutti_comm_set_algorithm(me->comm, "allreduce", "two_shot") == TUTTI_OK);
    run_and_check(me, ALLREDUCE, 1, 0, &tensors);
    REQUIRE(strcmp(me->comm->executor.launch.program->plan->algorithm->name, "two_shot") == 0);
    declarations_settle(me, ALLREDUCE, &tensors);
    REQUIRE(tutti_comm_set_algorithm(me->comm, "allreduce", NULL) == TUTTI_OK);
    run_and_check(me, ALLREDUCE, 1, 0, &tensors);
    REQUIRE(strcmp(me->comm->executor.launch.program->plan->algorithm->name, "two_shot") != 0);
}
static void test_calls_in_between_take_effect(void **state)
{
    (void)state;
    world_threads(2, NULL, runs_others, NULL);
}
static void groups_a_call(struct rank *me)
{
    static _Thread_local struct tensors tensors;
    declarations_settle(me, ALLREDUCE, &tensors);
    world_meet(me);
    if (me->rank) {
        world_meet(me);
        REQUIRE(call(me, ALLREDUCE, COUNT, 0, &tensors) == TUTTI_OK);
        return;
    }
    REQUIRE(tutti_group_start() == TUTTI_OK);
    /* If this call did more than start, it would wait for rank 1, which waits in world_meet. */
    REQUIRE(call(me, ALLREDUCE, COUNT, 0, &tensors) == TUTTI_OK);
    world_meet(me);
    REQUIRE(tutti_group_end() == TUTTI_OK);
}
static void test_a_grouped_call_only_starts(void **state)
{
    (void)state;
    world_threads(2, NULL, groups_a_call, NULL);
}

/* ---- beside another thread ---- */
static void *exchange_main(void *rank)
{
    const struct rank *me = rank;
    for (int32_t i = 0, got = 0; i < 2000; i++) {
        tutti_request request = TUTTI_REQUEST_INIT;
        REQUIRE(tutti_send(&i, 1, TUTTI_INT32, !me->rank, 3, me->comm, &request) == TUTTI_OK);
        REQUIRE(tutti_recv(&got, 1, TUTTI_INT32, !me->rank, 3, me->comm, NULL) == TUTTI_OK && got == i);
        REQUIRE(tutti_wait(&request, 0) == TUTTI_OK);
    }
    return NULL;
}
static void runs_beside_messages(struct rank *me)
{
    static _Thread_local struct tensors tensors;
    pthread_t other;
    declarations_settle(me, ALLREDUCE, &tensors);
    REQUIRE(pthread_create(&other, NULL, exchange_main, me) == 0);
    for (int i = 0; i < 20000; i++) run_and_check(me, ALLREDUCE, i % 1000, 0, &tensors);
    pthread_join(other, NULL);
}
static void test_another_thread_can_exchange_messages_meanwhile(void **state)
{
    (void)state;
    world_threads(2, NULL, runs_beside_messages, NULL);
}

/* ---- failures ---- */
static void rank_disagrees(struct rank *me)
{
    static _Thread_local struct tensors tensors;
    settle_in(*(const int *)me->context, me, ALLREDUCE, &tensors);
    REQUIRE(call(me, ALLREDUCE, me->rank ? COUNT - 1 : COUNT, 0, &tensors) == TUTTI_MISMATCH);
    SAYS("allreduce(2 x int32");
    SAYS("allreduce(1 x int32");
}
static void is_too_late(struct rank *me)
{
    static _Thread_local struct tensors tensors;
    declarations_settle(me, ALLREDUCE, &tensors);
    REQUIRE(tutti_comm_set_timeout(me->comm, 200) == TUTTI_OK);
    world_meet(me);
    if (!me->rank) {
        REQUIRE(call(me, ALLREDUCE, COUNT, 0, &tensors) == TUTTI_TIMEOUT);
        SAYS("allreduce(2 x int32");
        SAYS("rank 1");
    }
    world_meet(me);
}
static void is_aborted(struct rank *me)
{
    static _Thread_local struct tensors tensors;
    declarations_settle(me, ALLREDUCE, &tensors);
    world_meet(me);
    if (!me->rank) {
        struct aborter aborter = { me->comm, 50000 };
        pthread_t other;
        REQUIRE(pthread_create(&other, NULL, abort_main, &aborter) == 0);
        REQUIRE(call(me, ALLREDUCE, COUNT, 0, &tensors) == TUTTI_ABORTED);
        pthread_join(other, NULL);
    }
    world_meet(me);
}
static void test_a_differing_call_is_reported(void **state)
{
    for (int calls = 2; calls < 2 * DECLARATIONS; calls += 3) world_threads(2, NULL, rank_disagrees, &calls);
    (void)state;
}
static void test_a_call_without_its_peer_times_out(void **state)
{
    (void)state;
    world_threads(2, NULL, is_too_late, NULL);
}
static void test_a_waiting_call_can_be_aborted(void **state)
{
    (void)state;
    world_threads(2, NULL, is_aborted, NULL);
}
#ifndef NO_PROCESSES
static void rank_dies(struct rank *me)
{
    static struct tensors tensors;
    declarations_settle(me, BROADCAST, &tensors);
    declarations_settle(me, ALLREDUCE, &tensors);
    if (me->rank) raise(SIGKILL);
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < TRACKS && status == TUTTI_OK; i++) status = call(me, ALLREDUCE, COUNT, 0, &tensors);
    REQUIRE(status == TUTTI_PEER_LOST);
    SAYS("rank 1");
    REQUIRE(call(me, ALLREDUCE, COUNT, 0, &tensors) == TUTTI_PEER_LOST);
}
static void test_a_death_is_reported(void **state)
{
    (void)state;
    assert_int_equal(world_processes(2, SECONDS, rank_dies, NULL), 1);
}
static void rank_forks(struct rank *me)
{
    static struct tensors tensors;
    int status;
    declarations_settle(me, ALLREDUCE, &tensors);
    pid_t child = fork();
    if (!child) _exit(call(me, ALLREDUCE, COUNT, 0, &tensors) == TUTTI_FORKED ? 0 : 1);
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    run_and_check(me, ALLREDUCE, 1, 0, &tensors);
}
static void test_a_forked_child_is_refused(void **state)
{
    (void)state;
    assert_int_equal(world_processes(2, SECONDS, rank_forks, NULL), 0);
}
#endif

/* With these parameters no call as short as these selects late, whatever the parameters of this machine are. */
static int choose_parameters(void **state)
{
    (void)state;
    world_set("TUTTI_MACHINE",
        "line=20,hand_over=20,near=0.01,far=0.02,add=0.001,slot_write=0.01,slot_read=0.01,"
        "lost_write=0.01,lost_read=0.01");
    return 0;
}
unit_function test_fast_path;
int test_fast_path(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_results_are_right_whichever_rank_is_late),
        cmocka_unit_test(test_calls_in_between_take_effect),
        cmocka_unit_test(test_a_grouped_call_only_starts),
        cmocka_unit_test(test_another_thread_can_exchange_messages_meanwhile),
        cmocka_unit_test(test_a_differing_call_is_reported),
        cmocka_unit_test(test_a_call_without_its_peer_times_out),
        cmocka_unit_test(test_a_waiting_call_can_be_aborted),
#ifndef NO_PROCESSES
        cmocka_unit_test(test_a_death_is_reported),
        cmocka_unit_test(test_a_forked_child_is_refused),
#endif
    };
    return cmocka_run_group_tests(tests, choose_parameters, NULL);
}
