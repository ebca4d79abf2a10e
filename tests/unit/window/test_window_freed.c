/* A rank frees its window without the others while the group continues. The puts, signals and waits of the others then
   fail with an error that names the rank. Puts and signals that the rank has completed before still arrive. */
#include "include/tutti_window.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"

#define OK(call) REQUIRE((call) == TUTTI_OK)
#define REQUIRE_ERROR(text) REQUIRE(strstr(tutti_get_last_error(), text) != NULL)
/* Every transport announces a put of COUNT elements. The bytes of SMALL elements travel with their message. */
#ifdef FEW
enum { COUNT = 1 << 17, SMALL = 10 };
#else
enum { COUNT = 1 << 20, SMALL = 10 };
#endif
/* PRIVATE: no rank writes directly. MIXED: only rank 1 has memory that others write directly. */
enum memory_kind { SHARED_MEMORY, PRIVATE_MEMORY, MIXED_MEMORY, MEMORY_KINDS };
struct window { tutti_window *handle; int32_t *at; bool is_shared; };

static struct window window_open(const struct rank *me, tutti_comm *comm)
{
    enum memory_kind kind = *(enum memory_kind *)me->context;
    struct window w = { .is_shared = kind == SHARED_MEMORY || (kind == MIXED_MEMORY && me->rank == 1) };
    if (w.is_shared) OK(tutti_mem_alloc((void **)&w.at, COUNT * sizeof *w.at));
    else w.at = malloc(COUNT * sizeof *w.at);
    memset(w.at, 0, COUNT * sizeof *w.at);
    OK(tutti_window_register(w.at, COUNT, TUTTI_INT32, comm, &w.handle));
    return w;
}
static void window_free_memory(struct window *w)
{
    if (w->is_shared) OK(tutti_mem_free(w->at));
    else free(w->at);
}
static void window_free_all(struct window *w)
{
    OK(tutti_window_free(w->handle));
    window_free_memory(w);
}
/* Returns COUNT integers of that value. The caller frees them. */
static int32_t *integers_create(int32_t value)
{
    int32_t *at = malloc(COUNT * sizeof *at);
    for (int i = 0; i < COUNT; i++) at[i] = value;
    return at;
}
static tutti_status window_put(const struct window *w, const int32_t *from, size_t count, int peer)
{
    return tutti_window_put(w->handle, from, count, TUTTI_INT32, peer, 0, NULL);
}
/* Rank 1 has freed the window: each call of rank 0 that needs rank 1 is refused. */
static void require_refusals(const struct window *w, const int32_t *from)
{
    void *at;
    REQUIRE(tutti_window_wait_signal(w->handle, 1, NULL) == TUTTI_INVALID_ARGUMENT && tutti_last_error_is_refusal());
    REQUIRE_ERROR("rank 1 of ");
    REQUIRE_ERROR(" has freed its window (number ");
    REQUIRE_ERROR("), so rank 0 gets no more signals of it; all ranks must deregister a window together");
    REQUIRE(window_put(w, from, SMALL, 1) == TUTTI_INVALID_ARGUMENT && tutti_last_error_is_refusal());
    REQUIRE_ERROR("rank 1 of ");
    REQUIRE_ERROR(" has freed its window (number ");
    REQUIRE_ERROR("), so rank 0 can no longer write it; all ranks must deregister a window together");
    REQUIRE(window_put(w, from, COUNT, 1) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_window_signal(w->handle, 1, NULL) == TUTTI_INVALID_ARGUMENT);
    REQUIRE_ERROR("so rank 0 can no longer write it");
    tutti_status status = tutti_window_map(w->handle, 1, &at);
    REQUIRE(status == TUTTI_INVALID_ARGUMENT || status == TUTTI_UNSUPPORTED);
    if (status == TUTTI_INVALID_ARGUMENT) REQUIRE_ERROR("so rank 0 cannot map it");
}

/* ---- calls after the peer has freed its window ---- */
static void frees_while_idle(struct rank *me)
{
    struct window w = window_open(me, me->comm), other = window_open(me, me->comm);
    int32_t *from = integers_create(3);
    OK(tutti_barrier(me->comm, NULL));
    if (me->rank == 1) window_free_all(&w);
    if (me->rank == 0) require_refusals(&w, from);
    /* Puts to the other ranks, and calls on the other window, still work. */
    if (me->rank != 1) OK(window_put(&w, from, COUNT, me->rank == 2 || me->size < 3 ? 0 : 2));
    OK(window_put(&other, from, COUNT, rank_next(me)));
    OK(tutti_window_signal(other.handle, rank_next(me), NULL));
    OK(tutti_window_wait_signal(other.handle, rank_previous(me), NULL));
    REQUIRE(other.at[COUNT - 1] == 3);
    OK(tutti_barrier(me->comm, NULL));
    if (me->rank != 1) window_free_all(&w);
    OK(tutti_window_deregister(other.handle));
    window_free_all(&other);
    free(from);
}
/* ---- signals that the peer has sent before ---- */
static void signals_before_it_frees(struct rank *me)
{
    enum { SIGNALS = 20 };
    struct window w = window_open(me, me->comm);
    int32_t *from = integers_create(4);
    if (me->rank == 1) {
        OK(window_put(&w, from, COUNT, 0));
        for (int n = 0; n < SIGNALS; n++) OK(tutti_window_signal(w.handle, 0, NULL));
        window_free_all(&w);
    }
    if (me->rank == 0) {
        for (int n = 0; n < SIGNALS; n++) OK(tutti_window_wait_signal(w.handle, 1, NULL));
        for (int i = 0; i < COUNT; i++) REQUIRE(w.at[i] == 4);
        require_refusals(&w, from);
    }
    OK(tutti_barrier(me->comm, NULL));
    if (me->rank != 1) window_free_all(&w);
    free(from);
}
/* ---- calls that are open ---- */
static void frees_during_a_wait(struct rank *me)
{
    struct window w = window_open(me, me->comm);
    tutti_request request = TUTTI_REQUEST_INIT;
    if (me->rank == 0) OK(tutti_window_wait_signal(w.handle, 1, &request));
    world_meet(me);
    if (me->rank == 1) window_free_all(&w);
    if (me->rank == 0) {
        REQUIRE(tutti_wait(&request, 0) == TUTTI_INVALID_ARGUMENT);
        REQUIRE_ERROR("has freed its window");
    }
    OK(tutti_barrier(me->comm, NULL));
    if (me->rank != 1) window_free_all(&w);
}
/* Rank 1 frees the window during puts and writes its memory at once. No put may write there afterwards. */
static void frees_during_puts(struct rank *me)
{
    int32_t *from = integers_create(5);
    for (int round = 0; round < 5; round++) {
        struct window w = window_open(me, me->comm);
        if (me->rank == 1) {
            OK(tutti_window_wait_signal(w.handle, 0, NULL));
            OK(tutti_window_free(w.handle));
            memset(w.at, 7, COUNT * sizeof *w.at);
        }
        if (me->rank == 0) {
            tutti_status status = tutti_window_signal(w.handle, 1, NULL);
            while (status == TUTTI_OK) status = window_put(&w, from, COUNT, 1);
            REQUIRE(status == TUTTI_INVALID_ARGUMENT);
            REQUIRE_ERROR("has freed its window");
        }
        OK(tutti_barrier(me->comm, NULL));
        if (me->rank == 1) {
            for (int i = 0; i < COUNT; i++) REQUIRE(w.at[i] == 0x07070707);
            window_free_memory(&w);
        } else window_free_all(&w);
    }
    free(from);
}
/* Signals of a rank whose put is cancelled may be lost, but the wait for them ends. Each put has its own part of the
   window, because the next put may arrive while rank 0 reads. */
static void frees_during_its_own_puts(struct rank *me)
{
    enum { PUTS = 4, PART = COUNT / PUTS };
    int32_t *from = integers_create(6);
    for (int round = 0; round < 5; round++) {
        struct window w = window_open(me, me->comm);
        if (me->rank == 1) {
            tutti_request *requests = world_requests((size_t)2 * PUTS);
            for (int n = 0; n < PUTS; n++) {
                OK(tutti_window_put(w.handle, from, PART, TUTTI_INT32, 0, (size_t)n * PART, &requests[2 * n]));
                OK(tutti_window_signal(w.handle, 0, &requests[2 * n + 1]));
            }
            window_free_all(&w);
            for (int n = 0; n < 2 * PUTS; n++) tutti_wait(&requests[n], 0);
            free(requests);
        }
        if (me->rank == 0) {
            tutti_status status = TUTTI_OK;
            for (int taken = 1; status == TUTTI_OK; taken++) {
                status = tutti_window_wait_signal(w.handle, 1, NULL);
                if (status == TUTTI_OK) REQUIRE(w.at[taken * PART - 1] == 6);
            }
            REQUIRE(status == TUTTI_INVALID_ARGUMENT);
            REQUIRE_ERROR("so rank 0 gets no more signals of it");
        }
        OK(tutti_barrier(me->comm, NULL));
        if (me->rank != 1) window_free_all(&w);
    }
    free(from);
}
/* ---- a deregistration without one of the ranks ---- */
static void frees_instead_of_deregistering(struct rank *me)
{
    tutti_comm *comm;
    OK(tutti_comm_split(me->comm, 0, me->rank, &comm));
    struct window w = window_open(me, comm);
    world_meet(me);
    if (me->rank == 1) window_free_all(&w);
    else {
        REQUIRE(tutti_window_deregister(w.handle) == TUTTI_MISMATCH);
        REQUIRE_ERROR("rank 1 of ");
        REQUIRE_ERROR("has freed its window (number 1), but rank ");
        REQUIRE_ERROR("all ranks must deregister a window together");
    }
    world_meet(me);
    if (me->rank != 1) window_free_all(&w);
    OK(tutti_comm_destroy(comm));
}
/* ---- many windows that all ranks free alone ---- */
static void frees_many(struct rank *me)
{
    for (int round = 0; round < 50; round++) {
        struct window w = window_open(me, me->comm);
        OK(tutti_window_signal(w.handle, rank_next(me), NULL));
        OK(tutti_window_wait_signal(w.handle, rank_previous(me), NULL));
        window_free_all(&w);
    }
}

static void run_everywhere(rank_function *body)
{
    for (enum memory_kind kind = 0; kind < MEMORY_KINDS; kind++) {
        world_threads(2, NULL, body, &kind);
        world_threads_on("2", 2, NULL, body, &kind);
        world_threads_on("0,1,0", 3, NULL, body, &kind);
        world_threads_on("0,0,1", 3, NULL, body, &kind);
    }
}
static void test_calls_that_need_the_freed_window_are_refused(void **state)
{
    (void)state;
    run_everywhere(frees_while_idle);
}
static void test_signals_before_the_free_arrive(void **state) { (void)state; run_everywhere(signals_before_it_frees); }
static void test_open_wait_for_the_freeing_rank_fails(void **state)
{
    (void)state;
    run_everywhere(frees_during_a_wait);
}
static void test_puts_into_a_freed_window_fail(void **state) { (void)state; run_everywhere(frees_during_puts); }
static void test_waits_end_if_a_rank_frees_during_its_puts(void **state)
{
    (void)state;
    run_everywhere(frees_during_its_own_puts);
}
static void test_deregistering_without_a_rank_is_a_mismatch(void **state)
{
    (void)state;
    run_everywhere(frees_instead_of_deregistering);
}
static void test_all_ranks_free_many_windows_alone(void **state) { (void)state; run_everywhere(frees_many); }

unit_function test_window_freed;
int test_window_freed(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_that_need_the_freed_window_are_refused),
        cmocka_unit_test(test_signals_before_the_free_arrive),
        cmocka_unit_test(test_open_wait_for_the_freeing_rank_fails),
        cmocka_unit_test(test_puts_into_a_freed_window_fail),
        cmocka_unit_test(test_waits_end_if_a_rank_frees_during_its_puts),
        cmocka_unit_test(test_deregistering_without_a_rank_is_a_mismatch),
        cmocka_unit_test(test_all_ranks_free_many_windows_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
