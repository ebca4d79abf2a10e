/* all_gather_v and reduce_scatter_v against their definitions: any counts, with gaps between parts, in place or not,
   private or shared, by every algorithm; and calls that are refused or fail. */
#include "backend/base/settings.h"
#include "backend/collectives/collectives.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"

enum { MOST = 5, GAP = 3 };
#define SAYS(text) REQUIRE(strstr(tutti_get_last_error(), text) != NULL)
static const size_t cases[][MOST] = { { 0, 0, 0, 0, 0 }, { 1, 0, 2, 1, 0 }, { 0, 7, 0, 0, 0 }, { 5, 4, 3, 2, 1 },
    { 1000, 1, 17, 999, 0 }, { 3, 70001, 12345, 40000, 64 }, { 20000, 20000, 20000, 20000, 20000 } };
enum { CASES = sizeof cases / sizeof *cases };
#ifdef FEW
enum { LARGEST_WORLD = 3, STEP = 4 };
#else
enum { LARGEST_WORLD = MOST, STEP = 1 };
#endif
enum way { APART, IN_PLACE, SHARED, SHARED_IN_PLACE, WAYS };

static int64_t value(int rank, int part, size_t i)
{
    return (int64_t)((i * 7 + (size_t)part * 31) % 1000) * (rank + 1);
}
/* Places the parts in the order of the ranks or in the reverse order. Each rank chooses its own offsets. Returns the
   elements of all parts and gaps. */
static size_t place(const size_t *counts, int size, bool backwards, size_t *offsets)
{
    size_t at = GAP;
    for (int k = 0; k < size; k++) {
        int q = backwards ? size - 1 - k : k;
        offsets[q] = at;
        at += counts[q] + GAP;
    }
    return at;
}
struct buffers { int64_t *one, *all; bool shared; };
static struct buffers make(enum way way, size_t mine, size_t all, size_t at)
{
    struct buffers b = { .shared = way >= SHARED };
    size_t bytes = (all + 1) * sizeof(int64_t);
    if (b.shared) REQUIRE(tutti_mem_alloc((void **)&b.all, bytes) == TUTTI_OK);
    else b.all = malloc(bytes);
    for (size_t i = 0; i < all; i++) b.all[i] = -1;
    b.one = b.all + at;
    if (way % 2) return b;
    bytes = (mine + 1) * sizeof(int64_t);
    if (b.shared) REQUIRE(tutti_mem_alloc((void **)&b.one, bytes) == TUTTI_OK);
    else b.one = malloc(bytes);
    return b;
}
static void unmake(enum way way, struct buffers b)
{
    if (!(way % 2) && b.shared) tutti_mem_free(b.one);
    else if (!(way % 2)) free(b.one);
    if (b.shared) tutti_mem_free(b.all);
    else free(b.all);
}
struct test { struct rank *me; const char *algorithm; const size_t *counts; enum way way; bool asynchronous; };
static tutti_status finish(const struct test *t, tutti_status status, tutti_request *r)
{
    return status == TUTTI_OK && t->asynchronous ? tutti_wait(r, 0) : status;
}
static void gather(const struct test *t)
{
    struct rank *me = t->me;
    size_t offsets[MOST], mine = t->counts[me->rank], all = place(t->counts, me->size, me->rank % 2, offsets);
    struct buffers b = make(t->way, mine, all, offsets[me->rank]);
    tutti_request r = { .struct_size = sizeof r, .algorithm = t->algorithm, .blocking = !t->asynchronous };
    for (size_t i = 0; i < mine; i++) b.one[i] = value(me->rank, 0, i);
    REQUIRE(finish(t, tutti_all_gather_v(b.one, b.all, t->counts, offsets, TUTTI_INT64, me->comm, &r), &r) == TUTTI_OK);
    size_t written = 0, kept = 0;
    for (int q = 0; q < me->size; q++, written += t->counts[q - 1])
        for (size_t i = 0; i < t->counts[q]; i++) REQUIRE(b.all[offsets[q] + i] == value(q, 0, i));
    for (size_t i = 0; i < all; i++) kept += b.all[i] == -1;
    /* Gaps between parts are not written. */
    REQUIRE(kept == all - written);
    unmake(t->way, b);
}
static int64_t wanted(tutti_op op, const struct rank *me, size_t i)
{
    int64_t sum = 0, most = 0;
    for (int r = 0; r < me->size; r++) {
        int64_t v = value(r, me->rank, i);
        sum += v;
        if (v > most) most = v;
    }
    return op == TUTTI_MAX ? most : op == TUTTI_AVG ? sum / me->size : sum;
}
static void scatter(const struct test *t, tutti_op op)
{
    struct rank *me = t->me;
    size_t offsets[MOST], mine = t->counts[me->rank], all = place(t->counts, me->size, me->rank % 2, offsets);
    struct buffers b = make(t->way, mine, all, offsets[me->rank]);
    tutti_request r = { .struct_size = sizeof r, .algorithm = t->algorithm, .blocking = !t->asynchronous };
    for (int q = 0; q < me->size; q++)
        for (size_t i = 0; i < t->counts[q]; i++) b.all[offsets[q] + i] = value(me->rank, q, i);
    REQUIRE(finish(t, tutti_reduce_scatter_v(b.all, t->counts, offsets, b.one, TUTTI_INT64, op, me->comm, &r), &r)
        == TUTTI_OK);
    for (size_t i = 0; i < mine; i++) REQUIRE(b.one[i] == wanted(op, me, i));
    for (int q = 0; q < me->size; q++)
        for (size_t i = 0; i < t->counts[q] && q != me->rank; i++)
            REQUIRE(b.all[offsets[q] + i] == value(me->rank, q, i));
    unmake(t->way, b);
}
static void every_case(struct rank *me, const char *collective, const char *algorithm)
{
    for (int c = 0; c < CASES; c++)
        for (int way = 0; way < WAYS; way++) {
            /* Ranks may differ in where their tensors lie, and in how they wait. */
            struct test t = { me, algorithm, cases[c], (enum way)((way + me->rank * (c % 2)) % WAYS),
                (c + way + me->rank) % 3 == 0 };
            if (collective[0] == 'a') gather(&t);
            else scatter(&t, (tutti_op[]){ TUTTI_SUM, TUTTI_MAX, TUTTI_AVG }[(c + way) % 3]);
        }
}
/* Returns whether hosts are simulated and the algorithm needs all ranks on one host. */
static bool is_of_one_host(const char *collective, const char *name)
{
    enum collective f = collective[0] == 'a' ? ALLGATHER : REDUCE_SCATTER;
    return *settings_get()->hosts && collectives_find_algorithm(f, name)->host_memory;
}
static void all_algorithms(struct rank *me)
{
    const char *collectives[] = { "allgather", "reduce_scatter" }, *name;
    for (int f = 0; f < 2; f++) {
        every_case(me, collectives[f], NULL);
        for (int a = 0; (name = tutti_algorithm_name(collectives[f], a)) != NULL; a++)
            if (!is_of_one_host(collectives[f], name)) every_case(me, collectives[f], name);
    }
}

/* ---- over hosts ---- */
/* Rank r sends 3 * r + q elements to rank q. */
static void exchange_uneven(struct rank *me)
{
    size_t sent[MOST], received[MOST], from[MOST], to[MOST], out = 0, in = 0;
    int64_t input[8 * MOST * MOST], output[8 * MOST * MOST];
    for (int q = 0; q < me->size; q++) {
        sent[q] = 3 * (size_t)me->rank + (size_t)q;
        received[q] = 3 * (size_t)q + (size_t)me->rank;
        from[q] = out;
        to[q] = in;
        for (size_t i = 0; i < sent[q]; i++) input[out + i] = value(me->rank, q, i);
        out += sent[q];
        in += received[q];
    }
    REQUIRE(tutti_all_to_all_v(input, sent, from, output, received, to, TUTTI_INT64, me->comm, NULL) == TUTTI_OK);
    for (int q = 0; q < me->size; q++)
        for (size_t i = 0; i < received[q]; i++) REQUIRE(output[to[q] + i] == value(q, me->rank, i));
}
static void of_several_hosts(struct rank *me)
{
    for (int i = 0; i < 5; i++) exchange_uneven(me);
    all_algorithms(me);
    exchange_uneven(me);
}
static void test_results_over_hosts(void **state)
{
    (void)state;
    static const struct {
        const char *hosts;
        int size;
    } placements[] = { { "2", 2 }, { "0,1,0", 3 }, { "3", 3 }, { "0,1,0,1", 4 }, { "0,1,1,1", 4 }, { "4", 4 },
        { "2,0,2,1,0", 5 } };
    for (size_t p = 0; p < sizeof placements / sizeof *placements; p += STEP)
        world_threads_on(placements[p].hosts, placements[p].size, NULL, of_several_hosts, NULL);
}
static void test_results_on_threads(void **state)
{
    (void)state;
    for (int size = 1; size <= LARGEST_WORLD; size++) world_threads(size, NULL, all_algorithms, NULL);
}
#ifndef NO_PROCESSES
static void test_results_on_processes(void **state)
{
    (void)state;
    for (int size = 2; size <= 4; size++) assert_int_equal(world_processes(size, 120, all_algorithms, NULL), 0);
    world_pretend("0,1,0");
    assert_int_equal(world_processes(3, 120, of_several_hosts, NULL), 0);
    world_pretend("");
}
#endif
/* Each rank contributes (rank + 1) * 0.5. */
static void premultiplied(struct rank *me)
{
    size_t counts[3] = { 2, 0, 5 }, offsets[3] = { 0, 2, 2 };
    float send[7], recv[5] = { 0 };
    tutti_request r = { .struct_size = sizeof r, .factor = 0.5, .blocking = true };
    for (int i = 0; i < 7; i++) send[i] = (float)(me->rank + 1);
    REQUIRE(tutti_reduce_scatter_v(send, counts, offsets, recv, TUTTI_FLOAT32, TUTTI_PREMUL_SUM, me->comm, &r)
        == TUTTI_OK);
    for (size_t i = 0; i < 5; i++) REQUIRE(recv[i] == (i < counts[me->rank] ? 3.f : 0.f));
}
static void test_a_premultiplied_sum_uses_the_factor(void **state)
{
    (void)state;
    world_threads(3, NULL, premultiplied, NULL);
}

/* ---- refused ---- */
static void wrong_arguments(struct rank *me)
{
    static _Thread_local float a[64], b[64];
    size_t counts[2] = { 4, 6 }, offsets[2] = { 0, 8 }, huge[2] = { SIZE_MAX / 4, 1 }, half[2];
    tutti_comm *c = me->comm;
    half[0] = half[1] = PTRDIFF_MAX / 16 + 100;
#define REFUSES(call, text) REQUIRE((call) == TUTTI_INVALID_ARGUMENT && tutti_last_error_is_refusal()); SAYS(text)
    REFUSES(tutti_all_gather_v(a, b, NULL, offsets, TUTTI_FLOAT32, c, NULL), "all_gather_v: the array of counts");
    REFUSES(tutti_reduce_scatter_v(a, counts, NULL, b, TUTTI_FLOAT32, TUTTI_SUM, c, NULL),
        "reduce_scatter_v: the array");
    REFUSES(tutti_all_gather_v(a, b, huge, offsets, TUTTI_FLOAT64, c, NULL), "exceed the address space");
    REFUSES(tutti_all_gather_v(a, b, half, offsets, TUTTI_FLOAT64, c, NULL),
        "add up to more bytes than the address space has");
    REFUSES(tutti_all_gather_v(NULL, b, counts, offsets, TUTTI_FLOAT32, c, NULL), "the send buffer is NULL");
    REFUSES(tutti_all_gather_v(a, NULL, counts, offsets, TUTTI_FLOAT32, c, NULL),
        "the receive buffer is NULL, but must have 56");
    REFUSES(tutti_reduce_scatter_v(a, counts, offsets, b, TUTTI_FLOAT32, TUTTI_BXOR, c, NULL), "is not defined");
    REFUSES(tutti_all_gather_v(b + offsets[me->rank] + 1, b, counts, offsets, TUTTI_FLOAT32, c, NULL),
        "but not in place (send == recv + offsets[rank])");
    REFUSES(tutti_reduce_scatter_v(a, counts, offsets, a + offsets[1 - me->rank], TUTTI_FLOAT32, TUTTI_SUM, c, NULL),
        "but not in place (recv == send + offsets[rank])");
    size_t meet[2] = { 5, 0 }, backwards[2] = { 6, 0 };
    REFUSES(tutti_all_gather_v(a, b, counts, meet, TUTTI_FLOAT32, c, NULL),
        "the parts that ranks 0 and 1 send are received into memory that overlaps");
    REFUSES(tutti_all_to_all_v(a, counts, offsets, b, counts, meet, TUTTI_FLOAT32, c, NULL),
        "the parts that ranks 0 and 1 send are received into memory that overlaps");
#undef REFUSES
    REQUIRE(tutti_all_gather_v(a, b, counts, backwards, TUTTI_FLOAT32, c, NULL) == TUTTI_OK);
    for (int i = 0; i < 6; i++) a[i] = (float)me->rank;
    REQUIRE(tutti_all_gather_v(a, b, counts, offsets, TUTTI_FLOAT32, c, NULL) == TUTTI_OK && b[0] == 0 && b[13] == 1);
}
static void test_wrong_arguments_are_refused(void **state)
{
    (void)state;
    world_threads(2, NULL, wrong_arguments, NULL);
}

/* ---- disagreement ---- */
static tutti_status call_with_other_counts(const struct rank *me, bool gathers, int32_t *one, int32_t *all)
{
    size_t counts[3] = { 2, me->rank == 2 ? 7 : 3, 4 }, offsets[3] = { 0, 8, 16 };
    return gathers ? tutti_all_gather_v(one, all, counts, offsets, TUTTI_INT32, me->comm, NULL)
                   : tutti_reduce_scatter_v(all, counts, offsets, one, TUTTI_INT32, TUTTI_SUM, me->comm, NULL);
}
static void disagree(struct rank *me)
{
    static _Thread_local int32_t one[64], all[64];
    bool gathers = *(const bool *)me->context;
    for (int i = 0; i < 64; i++) one[i] = all[i] = 5;
    tutti_status status = call_with_other_counts(me, gathers, one, all);
    REQUIRE(status == TUTTI_MISMATCH && !tutti_last_error_is_refusal());
    SAYS(gathers ? "all_gather with uneven counts" : "reduce_scatter with uneven counts");
    SAYS("rank 0 gives rank 1 a count of 3 elements, but rank 2 gives it 7; all ranks must give the same counts");
    for (int i = 0; i < 64; i++) REQUIRE(one[i] == 5 && all[i] == 5);
}
static void test_counts_that_differ_fail_on_all_ranks(void **state)
{
    (void)state;
    static const bool both[] = { true, false };
    for (int i = 0; i < 2; i++) world_threads(3, NULL, disagree, (void *)(uintptr_t)&both[i]);
}
/* Other hosts know only a digest of the counts. Messages of calls with different counts never meet. */
static void disagree_with_another_host(struct rank *me)
{
    static _Thread_local int32_t one[64], all[64];
    bool gathers = *(const bool *)me->context;
    tutti_status status = call_with_other_counts(me, gathers, one, all);
    REQUIRE(status == TUTTI_MISMATCH && !tutti_last_error_is_refusal());
    SAYS(gathers ? "calls allgather(uneven counts, int32)" : "calls reduce_scatter(uneven counts, int32, sum)");
    SAYS("counts with the digest");
    SAYS("rank 2");
}
static void test_counts_that_differ_between_hosts_fail_on_all(void **state)
{
    (void)state;
    static const bool both[] = { true, false };
    for (int i = 0; i < 2; i++)
        world_threads_on("0,0,1", 3, NULL, disagree_with_another_host, (void *)(uintptr_t)&both[i]);
}
/* One rank makes a call with even counts. Then one rank reduces with another operation. */
static void disagree_otherwise(struct rank *me)
{
    static _Thread_local float one[8], all[16];
    size_t counts[2] = { 4, 4 }, offsets[2] = { 0, 4 };
    tutti_comm *comm;
    REQUIRE(tutti_comm_split(me->comm, 0, 0, &comm) == TUTTI_OK);
    tutti_status status = me->rank ? tutti_all_gather_v(one, all, counts, offsets, TUTTI_FLOAT32, comm, NULL)
                                   : tutti_all_gather(one, all, 4, TUTTI_FLOAT32, comm, NULL);
    REQUIRE(status == TUTTI_MISMATCH);
    SAYS("allgather(uneven counts, float32)");
    SAYS("allgather(4 x float32");
    REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
    tutti_op op = me->rank ? TUTTI_MAX : TUTTI_SUM;
    status = tutti_reduce_scatter_v(all, counts, offsets, one, TUTTI_FLOAT32, op, me->comm, NULL);
    REQUIRE(status == TUTTI_MISMATCH);
    SAYS("reduce_scatter(uneven counts, float32, sum)");
    SAYS("reduce_scatter(uneven counts, float32, max)");
}
static void test_even_and_uneven_calls_do_not_match(void **state)
{
    (void)state;
    world_threads(2, NULL, disagree_otherwise, NULL);
}
unit_function test_uneven;
int test_uneven(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_results_on_threads),
        cmocka_unit_test(test_results_over_hosts),
#ifndef NO_PROCESSES
        cmocka_unit_test(test_results_on_processes),
#endif
        cmocka_unit_test(test_a_premultiplied_sum_uses_the_factor),
        cmocka_unit_test(test_wrong_arguments_are_refused),
        cmocka_unit_test(test_counts_that_differ_fail_on_all_ranks),
        cmocka_unit_test(test_counts_that_differ_between_hosts_fail_on_all),
        cmocka_unit_test(test_even_and_uneven_calls_do_not_match),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
