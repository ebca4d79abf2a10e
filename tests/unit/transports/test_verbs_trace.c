/* The requests and completions of messages of three sizes from rank 0 to rank 1 over verbs, on the fake provider.
   `unit_transports test_verbs_trace print` prints the events, which tests/verbs/picture.py draws. */
#include "tests/support/unit.h"
#include "tests/unit/transports/ranks_verbs.h"

enum { LARGE = 5 << 20, EVENTS = 64 };
static const struct {
    const char *name;
    size_t bytes;
} messages[] = { { "8 bytes", 8 }, { "16 KiB", 16 << 10 }, { "5 MiB", LARGE } };
enum { MESSAGES = sizeof messages / sizeof *messages };
static unsigned char from[LARGE], to[LARGE];
static struct fake_event seen[MESSAGES][EVENTS];
static size_t seen_count[MESSAGES];

static void one_message(struct rank *me, int i)
{
    struct transfer x;
    struct piece piece;
    rank_settle(me);
    rank_meet(me);
    if (me->rank == 0) fake.fake_trace(seen[i], EVENTS);
    rank_meet(me);
    if (me->rank == 0) rank_send(me, &x, 1, (uint64_t)i + 1, &piece, from, messages[i].bytes);
    else rank_recv(me, &x, 0, (uint64_t)i + 1, &piece, to, messages[i].bytes);
    rank_await(me, &x, 1);
    REQUIRE(x.state == TRANSFER_DONE);
    rank_meet(me);
    if (me->rank != 0) return;
    fake.fake_trace(NULL, 0);
    seen_count[i] = fake.fake_traced();
    REQUIRE(seen_count[i] <= EVENTS);
}
static void all_messages(struct rank *me)
{
    /* Opens the connection. */
    rank_swap(me, 0);
    for (int i = 0; i < MESSAGES; i++) one_message(me, i);
}

/* ---- the events ---- */
/* Returns the number of rank 0's queue pair, which posts first. */
static uint32_t sender_number(void)
{
    size_t n = 0;
    while (seen[0][n].moment != FAKE_POSTED) n++;
    return seen[0][n].qp_num;
}
static void print_events(void)
{
    static const char *const moments[] = { "posted", "carried", "polled", "consumed" };
    for (int i = 0; i < MESSAGES; i++)
        for (size_t n = 0; n < seen_count[i]; n++) {
            const struct fake_event *e = &seen[i][n];
            const char *what = e->moment > FAKE_CARRIED ? "" : e->opcode == IBV_WR_RDMA_READ ? "read" : "write";
            printf("%s\trank %d\t%s\t%s\t%llu\t%s%s%s\n", messages[i].name, e->qp_num != sender_number(),
                moments[e->moment], what, (unsigned long long)e->bytes, e->rings ? "rings " : "",
                e->inlined ? "inline " : "", e->signaled ? "signalled" : "");
        }
}
/* Returns the next event of this kind and rank from number *at on, and sets *at to the number behind it. */
static const struct fake_event *next(int i, size_t *at, enum fake_moment moment, int rank)
{
    for (; *at < seen_count[i]; ++*at) {
        const struct fake_event *e = &seen[i][*at];
        if (e->moment == moment && (e->qp_num != sender_number()) == rank) return &seen[i][(*at)++];
    }
    fail_msg("%s: no event %d of rank %d", messages[i].name, moment, rank);
    return NULL;
}
static size_t count_posted(int i)
{
    size_t posted = 0;
    for (size_t n = 0; n < seen_count[i]; n++) posted += seen[i][n].moment == FAKE_POSTED;
    return posted;
}
static void test_a_small_message_is_a_write(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        size_t at = 0;
        const struct fake_event *write = next(i, &at, FAKE_POSTED, 0);
        assert_int_equal(write->opcode, IBV_WR_RDMA_WRITE_WITH_IMM);
        assert_true(write->rings && !write->signaled && write->inlined == (i == 0));
        assert_in_range(write->bytes, messages[i].bytes, messages[i].bytes + 128);
        next(i, &at, FAKE_HEARD, 1);
        assert_int_equal(count_posted(i), 1);
    }
}
static void test_a_large_message_is_offered_read_and_done(void **state)
{
    enum { I = MESSAGES - 1, READS = LARGE >> 20 };
    size_t at = 0;
    (void)state;
    assert_int_equal(next(I, &at, FAKE_POSTED, 0)->opcode, IBV_WR_RDMA_WRITE_WITH_IMM);
    next(I, &at, FAKE_HEARD, 1);
    for (int r = 0; r < READS; r++) {
        const struct fake_event *read = next(I, &at, FAKE_POSTED, 1);
        assert_int_equal(read->opcode, IBV_WR_RDMA_READ);
        assert_int_equal(read->bytes, 1 << 20);
        assert_true(read->rings == (r == 0) && read->signaled == (r == READS - 1));
    }
    next(I, &at, FAKE_POLLED, 1);
    assert_int_equal(next(I, &at, FAKE_POSTED, 1)->opcode, IBV_WR_RDMA_WRITE_WITH_IMM);
    next(I, &at, FAKE_HEARD, 0);
    assert_int_equal(count_posted(I), READS + 2);
}
unit_function test_verbs_trace;
int test_verbs_trace(void)
{
    int argc = unit_arguments.count;
    char **argv = unit_arguments.words;
    if (!ranks_verbs_open()) return SKIPPED;
    ranks_verbs_apart(2, POLLS, all_messages);
    if (argc > 1 && strcmp(argv[1], "print") == 0) { print_events(); return 0; }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_small_message_is_a_write),
        cmocka_unit_test(test_a_large_message_is_offered_read_and_done),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
