/* The wire form refuses invalid input. The times of agree.h are tested with a clock that the test sets: when a rank
   asks, when all ranks know of a disagreement, and how long a rank waits for hosts that do not answer. */
#include "backend/agree/agree.h"
#include "include/tutti.h"
#include "tests/support/unit.h"

enum { RANKS = 4, HOSTS = 2, QUEUE = 256, DELAY_MS = 1, BEGIN_MS = 1000 };
static const int host_of[RANKS] = { 0, 1, 0, 1 };

/* ---- the wire form ---- */
static uint64_t random_state;
static uint64_t random_next(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}
static struct agree_message failure_message(void)
{
    struct agree_message m;
    memset(&m, 0, sizeof m);
    m.kind = AGREE_FAIL;
    m.decided = 1;
    m.cause.kind = AGREE_DISAGREEMENT;
    m.cause.status = TUTTI_MISMATCH;
    m.cause.reporter = 3;
    m.cause.other = 1;
    m.cause.operation = 7;
    for (int i = 0; i < 2; i++) {
        m.cause.calls[i].number = 7;
        m.cause.calls[i].fingerprint = 100 + (uint64_t)i;
        memset(m.cause.calls[i].declaration, 'a' + i, sizeof m.cause.calls[i].declaration);
    }
    strcpy(m.cause.detail, "the text of the engine");
    return m;
}
static struct agree_message ask_message(void)
{
    struct agree_message m;
    memset(&m, 0, sizeof m);
    m.kind = AGREE_ASK;
    m.calls[0].number = 7;
    m.calls[0].fingerprint = 100;
    return m;
}
static void test_message_is_decoded_as_it_was_encoded(void **state)
{
    (void)state;
    struct agree_message messages[] = { failure_message(), ask_message() }, back;
    unsigned char wire[AGREE_WIRE_BYTES];
    for (int i = 0; i < 2; i++) {
        agree_message_encode(&messages[i], wire);
        assert_true(agree_message_decode(wire, sizeof wire, RANKS, &back));
        assert_memory_equal(&back, &messages[i], sizeof back);
        assert_false(agree_message_decode(wire, sizeof wire - 1, RANKS, &back));
        assert_false(agree_message_decode(wire, sizeof wire + 1, RANKS, &back));
        wire[0]++;
        assert_false(agree_message_decode(wire, sizeof wire, RANKS, &back));
    }
}
static void test_message_has_the_bytes_of_version_2(void **state)
{
    (void)state;
    static const unsigned char expected[] = { 2, 0, AGREE_FAIL, 0, 1, 0, 0, 0 };
    struct agree_message m = failure_message();
    unsigned char wire[AGREE_WIRE_BYTES];
    agree_message_encode(&m, wire);
    assert_memory_equal(wire, expected, sizeof expected);
    assert_int_equal(sizeof wire, 768);
}
static void message_expect_refused(const struct agree_message *m)
{
    unsigned char wire[AGREE_WIRE_BYTES];
    struct agree_message back, untouched;
    memset(&back, 0x5a, sizeof back);
    untouched = back;
    agree_message_encode(m, wire);
    assert_false(agree_message_decode(wire, sizeof wire, RANKS, &back));
    assert_memory_equal(&back, &untouched, sizeof back);
}
#define REFUSE(make, change) do { struct agree_message m = make(); change; message_expect_refused(&m); } while (0)
static void test_message_that_no_rank_can_send_is_refused(void **state)
{
    (void)state;
    REFUSE(failure_message, m.kind = AGREE_MESSAGES);
    REFUSE(failure_message, m.decided = 2);
    REFUSE(ask_message, m.decided = 1);
    REFUSE(failure_message, m.cause.kind = AGREE_KINDS);
    REFUSE(failure_message, m.cause.kind = -1);
    REFUSE(failure_message, m.cause.status = TUTTI_OK);
    REFUSE(failure_message, m.cause.reporter = RANKS);
    REFUSE(failure_message, m.cause.reporter = -1);
    REFUSE(failure_message, m.cause.other = RANKS);
    /* A disagreement must name the other rank. */
    REFUSE(failure_message, m.cause.other = -1);
    REFUSE(failure_message, m.cause.operation = 0);
    REFUSE(failure_message, m.cause.operation = UINT64_MAX);
    REFUSE(failure_message, m.cause.calls[1].number = UINT64_MAX);
    REFUSE(failure_message, memset(m.cause.detail, 'x', sizeof m.cause.detail));
    REFUSE(ask_message, m.calls[0].number = UINT64_MAX);
}
/* Messages with random bytes: the fields of an accepted message are in range, and a rank that handles it sends messages
   only to the other host. */
static void test_random_bytes_are_refused_or_handled(void **state)
{
    (void)state;
    struct agree_peer peers[RANKS];
    int hosts[HOSTS];
    struct agree_layout layout = { 0, RANKS, HOSTS, host_of, peers, hosts };
    struct agree_message good[] = { failure_message(), ask_message() }, m;
    struct agree a;
    unsigned char wire[AGREE_WIRE_BYTES];
    int accepted = 0, to;
    random_state = 88172645463325252u;
    for (int round = 0; round < 200000; round++) {
        if (round % 50 == 0) agree_init(&a, &layout);
        agree_message_encode(&good[random_next() % 2], wire);
        for (uint64_t flips = random_next() % 4; flips-- > 0;)
            wire[random_next() % (random_next() % 2 ? sizeof wire : 48)] = (unsigned char)random_next();
        if (!agree_message_decode(wire, sizeof wire, RANKS, &m)) continue;
        accepted++;
        assert_true(m.kind < AGREE_MESSAGES && m.cause.reporter < RANKS && m.cause.other < RANKS);
        agree_handle_message(&a, 1 + 2 * (int)(random_next() % 2), &m);
        if (a.state == AGREE_CLAIMS) agree_on_failure_record(&a, &a.held);
        if (a.state == AGREE_DECIDES) agree_on_decision_record(&a, &a.held);
        while (agree_next_message(&a, &to, &m)) assert_int_equal(host_of[to], 1);
    }
    assert_true(accepted > 10000 && accepted < 190000);
}

/* ---- ranks, hosts and links with a simulated clock ---- */
struct queued_message { int from, to; int64_t at_ms; struct agree_message message; };
/* The simulated ranks, the records of their hosts and the messages on their links. `over_ms`: when a rank reached OVER.
   `asked`: the number of ASK messages. */
static struct {
    int64_t now_ms;
    struct agree ranks[RANKS];
    struct agree_peer peers[RANKS][RANKS];
    int hosts[RANKS][HOSTS];
    struct agree_cause record[HOSTS], decision[HOSTS];
    bool has_record[HOSTS], has_decision[HOSTS], stopped[RANKS];
    int64_t over_ms[RANKS];
    struct queued_message messages[QUEUE];
    int count, asked;
} w;
/* Does what agree.h asks of a caller after each input: writes the records and sends the messages. */
static void rank_write_records(int r)
{
    struct agree *a = &w.ranks[r];
    int h = host_of[r], to;
    struct agree_message m;
    if (a->state == AGREE_CLAIMS) {
        if (!w.has_record[h]) w.record[h] = a->held;
        w.has_record[h] = true;
        agree_on_failure_record(a, &w.record[h]);
    }
    if (a->state == AGREE_DECIDES) {
        if (!w.has_decision[h]) w.decision[h] = a->held;
        w.has_decision[h] = true;
        agree_on_decision_record(a, &w.decision[h]);
    }
    while (agree_next_message(a, &to, &m)) {
        assert_true(w.count < QUEUE);
        w.asked += m.kind == AGREE_ASK;
        w.messages[w.count++] = (struct queued_message){ r, to, w.now_ms + DELAY_MS, m };
    }
}
static void messages_deliver(void)
{
    for (int i = 0; i < w.count;) {
        struct queued_message queued = w.messages[i];
        if (queued.at_ms > w.now_ms || w.stopped[queued.to]) { i++; continue; }
        memmove(&w.messages[i], &w.messages[i + 1], (size_t)(--w.count - i) * sizeof queued);
        agree_handle_message(&w.ranks[queued.to], queued.from, &queued.message);
        rank_write_records(queued.to);
    }
}
/* Moves the clock on. Ranks that are not stopped read the clock and the records, and get their messages, every
   millisecond. */
static void time_pass(int64_t until_ms)
{
    for (; w.now_ms < until_ms; w.now_ms++) {
        for (int r = 0; r < RANKS; r++) {
            struct agree *a = &w.ranks[r];
            if (w.stopped[r]) continue;
            agree_advance_time(a, w.now_ms);
            if (w.has_record[host_of[r]]) agree_on_failure_record(a, &w.record[host_of[r]]);
            if (w.has_decision[host_of[r]]) agree_on_decision_record(a, &w.decision[host_of[r]]);
            rank_write_records(r);
            if (a->state == AGREE_OVER && !w.over_ms[r]) w.over_ms[r] = w.now_ms;
        }
        messages_deliver();
    }
}
static int group_setup(void **state)
{
    (void)state;
    memset(&w, 0, sizeof w);
    w.now_ms = BEGIN_MS;
    for (int r = 0; r < RANKS; r++)
        agree_init(&w.ranks[r], &(struct agree_layout){ r, RANKS, HOSTS, host_of, w.peers[r], w.hosts[r] });
    time_pass(BEGIN_MS + 1);
    return 0;
}
static void rank_begin_call(int r, uint64_t number, uint64_t fingerprint, int waits_for)
{
    struct agree_call call;
    memset(&call, 0, sizeof call);
    call.number = number;
    call.fingerprint = fingerprint;
    call.declaration[0] = (unsigned char)fingerprint;
    agree_begin(&w.ranks[r], &call);
    if (waits_for >= 0) agree_set_waiting(&w.ranks[r], waits_for, true);
    rank_write_records(r);
}
static void abort_group(int r)
{
    struct agree_cause cause = failure_message().cause;
    cause.kind = AGREE_ABORTED;
    cause.status = TUTTI_ABORTED;
    cause.reporter = r;
    cause.other = -1;
    agree_report_cause(&w.ranks[r], &cause);
    rank_write_records(r);
}
static void assert_over(int r, int64_t within_ms)
{
    assert_int_equal(w.ranks[r].state, AGREE_OVER);
    assert_in_range(w.over_ms[r] - BEGIN_MS, 0, within_ms);
}
static void test_rank_asks_after_waiting_for_50_ms(void **state)
{
    (void)state;
    rank_begin_call(0, 1, 5, 1);
    time_pass(BEGIN_MS + 50);
    assert_int_equal(w.asked, 0);
    time_pass(BEGIN_MS + 52);
    assert_int_equal(w.asked, 1);
    /* The message of rank 1 has arrived. */
    agree_set_waiting(&w.ranks[0], 1, false);
    time_pass(BEGIN_MS + 5000);
    assert_int_equal(w.asked, 1);
}
static void test_waiting_rank_asks_at_growing_intervals(void **state)
{
    (void)state;
    rank_begin_call(0, 1, 5, 1);
    /* Rank 0 asks after 50, 150, 350 and 750 ms, then every 400 ms. */
    time_pass(BEGIN_MS + 10000);
    assert_in_range(w.asked, 20, 28);
    /* That rank 1 is late is no failure. */
    assert_int_equal(w.ranks[0].state, AGREE_RUNS);
}
/* No rank sends a first message: ranks 0 and 1 wait for each other, and so do 2 and 3. */
static void test_silent_disagreement_is_known_within_a_second(void **state)
{
    (void)state;
    rank_begin_call(0, 1, 5, 1);
    rank_begin_call(1, 1, 6, 0);
    rank_begin_call(2, 1, 5, 3);
    rank_begin_call(3, 1, 6, 2);
    time_pass(BEGIN_MS + 1000);
    for (int r = 0; r < RANKS; r++) {
        const struct agree_cause *c = &w.ranks[r].held;
        assert_over(r, 60);
        assert_int_equal(c->kind, AGREE_DISAGREEMENT);
        assert_int_not_equal(c->calls[0].declaration[0], c->calls[1].declaration[0]);
        assert_int_equal(c->reporter, w.ranks[0].held.reporter);
    }
}
/* The worst case: rank 0 has waited so long that it asks only every 400 ms when rank 1 begins, and rank 1 does not ask
   itself. */
static void test_late_disagreement_is_known_within_a_second(void **state)
{
    (void)state;
    rank_begin_call(0, 1, 5, 1);
    time_pass(BEGIN_MS + 5155);
    rank_begin_call(1, 1, 6, -1);
    int64_t begun_ms = w.now_ms;
    time_pass(begun_ms + 1000);
    for (int r = 0; r < RANKS; r++) assert_over(r, begun_ms - BEGIN_MS + 450);
}
static void test_suspect_that_does_not_answer_is_accused(void **state)
{
    (void)state;
    rank_begin_call(0, 1, 5, 1);
    w.stopped[1] = true;
    assert_true(agree_on_first_message(&w.ranks[0], 1, 1, 6));
    assert_false(agree_try_end_operation(&w.ranks[0], 1));
    rank_write_records(0);
    time_pass(BEGIN_MS + 2000);
    for (int r = 0; r < RANKS; r++)
        if (r != 1) assert_over(r, 1000);
    assert_int_equal(w.ranks[0].held.calls[1].number, 0);
    assert_int_equal(w.ranks[0].held.calls[1].fingerprint, 6);
    assert_int_equal(w.ranks[0].held.calls[0].declaration[0], 5);
}
static void test_first_message_before_the_operation_is_reported_again(void **state)
{
    (void)state;
    assert_false(agree_on_first_message(&w.ranks[0], 1, 1, 6));
    rank_begin_call(0, 1, 5, -1);
    assert_true(agree_on_first_message(&w.ranks[0], 1, 1, 6));
    assert_false(agree_try_end_operation(&w.ranks[0], 1));
}
/* Rank 0 has ended operations 1 to 6 and gets a question of rank 1 about one operation. */
static void answer_about(uint64_t number, uint64_t fingerprint)
{
    struct agree_message m = ask_message();
    for (uint64_t n = 1; n <= 6; n++) {
        rank_begin_call(0, n, 50 + n, -1);
        assert_true(agree_try_end_operation(&w.ranks[0], n));
    }
    m.calls[0].number = number;
    m.calls[0].fingerprint = fingerprint;
    agree_handle_message(&w.ranks[0], 1, &m);
}
static void test_last_four_operations_are_compared(void **state)
{
    (void)state;
    answer_about(3, 99);
    assert_int_equal(w.ranks[0].state, AGREE_CLAIMS);
    assert_int_equal(w.ranks[0].held.operation, 3);
    assert_int_equal(w.ranks[0].held.calls[0].fingerprint, 53);
    assert_int_equal(w.ranks[0].held.calls[1].fingerprint, 99);
}
/* Operations 4, 5 and 6 differ. The cause names the first of them, because later ones differ because of it. */
static void test_cause_names_the_first_difference(void **state)
{
    (void)state;
    struct agree_message m = ask_message();
    for (uint64_t n = 1; n <= 6; n++) rank_begin_call(0, n, 50 + n, -1);
    for (uint64_t i = 0; i < 3; i++) m.calls[i].number = 6 - i, m.calls[i].fingerprint = 90 + i;
    m.calls[3].number = 3;
    m.calls[3].fingerprint = 53;
    agree_handle_message(&w.ranks[0], 1, &m);
    assert_int_equal(w.ranks[0].held.operation, 4);
    assert_int_equal(w.ranks[0].held.calls[0].fingerprint, 54);
    assert_int_equal(w.ranks[0].held.calls[1].fingerprint, 92);
}
static void test_rank_that_asks_gets_the_decision(void **state)
{
    (void)state;
    struct agree_message m = ask_message(), answer;
    int to;
    abort_group(0);
    time_pass(BEGIN_MS + 2000);
    assert_over(0, 1000);
    agree_handle_message(&w.ranks[0], 1, &m);
    assert_true(agree_next_message(&w.ranks[0], &to, &answer));
    assert_int_equal(to, 1);
    assert_int_equal(answer.kind, AGREE_FAIL);
    assert_int_equal(answer.decided, 1);
    assert_false(agree_next_message(&w.ranks[0], &to, &answer));
}
/* ASK has the calls of the asking rank, and ANSWER those of the other. So both ranks can compare them. */
static void test_rank_that_asks_gets_an_answer(void **state)
{
    (void)state;
    struct agree_message m = ask_message(), answer;
    int to;
    rank_begin_call(0, 7, 100, -1);
    agree_handle_message(&w.ranks[0], 1, &m);
    assert_true(agree_next_message(&w.ranks[0], &to, &answer));
    assert_int_equal(to, 1);
    assert_int_equal(answer.kind, AGREE_ANSWER);
    assert_int_equal(answer.calls[7 % AGREE_HISTORY].number, 7);
}
static void test_rank_asks_at_once_on_request(void **state)
{
    (void)state;
    rank_begin_call(0, 1, 5, 1);
    agree_ask_now(&w.ranks[0]);
    time_pass(BEGIN_MS + 3);
    assert_int_equal(w.asked, 1);
}
static void test_older_operations_are_not_compared(void **state)
{
    (void)state;
    answer_about(2, 99);
    assert_int_equal(w.ranks[0].state, AGREE_RUNS);
}
static void test_later_operations_are_not_compared(void **state)
{
    (void)state;
    answer_about(7, 99);
    assert_int_equal(w.ranks[0].state, AGREE_RUNS);
}
static void test_earlier_operation_may_succeed_after_a_failure(void **state)
{
    (void)state;
    /* The failure is of operation 7. */
    struct agree_cause cause = failure_message().cause;
    rank_begin_call(0, 6, 5, -1);
    agree_on_failure_record(&w.ranks[0], &cause);
    assert_true(agree_try_end_operation(&w.ranks[0], 6));
    rank_begin_call(0, 7, 5, -1);
    assert_false(agree_try_end_operation(&w.ranks[0], 7));
}
static void test_error_of_a_rank_precedes_its_loss(void **state)
{
    (void)state;
    abort_group(1);
    /* Rank 0 learns of the loss of rank 1 before the message of rank 1 arrives. */
    agree_on_peer_lost(&w.ranks[0], 1, "");
    rank_write_records(0);
    time_pass(BEGIN_MS + 100);
    for (int r = 0; r < RANKS; r++) assert_int_equal(w.ranks[r].held.kind, AGREE_ABORTED);
}
static void test_abort_reaches_all_ranks_within_10_ms(void **state)
{
    (void)state;
    abort_group(3);
    time_pass(BEGIN_MS + 1000);
    for (int r = 0; r < RANKS; r++) {
        assert_over(r, 10);
        assert_int_equal(w.ranks[r].held.reporter, 3);
        assert_string_equal(w.ranks[r].held.detail, "the text of the engine");
    }
}
static void test_other_ranks_decide_without_a_stopped_speaker(void **state)
{
    (void)state;
    /* Rank 1 is the speaker of ranks 1 and 3. */
    w.stopped[1] = true;
    abort_group(3);
    time_pass(BEGIN_MS + 2000);
    for (int r = 0; r < RANKS; r++)
        if (r != 1) { assert_over(r, 700); assert_int_equal(w.ranks[r].held.reporter, 3); }
    w.stopped[1] = false;
    time_pass(w.now_ms + 10);
    assert_int_equal(w.ranks[1].state, AGREE_OVER);
    assert_int_equal(w.ranks[1].held.reporter, 3);
}
static void test_other_host_decides_without_a_stopped_host(void **state)
{
    (void)state;
    w.stopped[1] = w.stopped[3] = true;
    abort_group(0);
    time_pass(BEGIN_MS + 2000);
    assert_over(0, 310);
    assert_over(2, 310);
    w.stopped[1] = w.stopped[3] = false;
    time_pass(w.now_ms + 10);
    for (int r = 0; r < RANKS; r++) assert_int_equal(w.ranks[r].held.reporter, 0);
}
static void test_death_of_a_host_is_reported_on_the_other(void **state)
{
    (void)state;
    w.stopped[1] = w.stopped[3] = true;
    for (int r = 0; r < RANKS; r += 2)
        for (int dead = 1; dead < RANKS; dead += 2) {
            agree_on_peer_lost(&w.ranks[r], dead, "");
            rank_write_records(r);
        }
    time_pass(BEGIN_MS + 100);
    for (int r = 0; r < RANKS; r += 2) {
        assert_over(r, 5);
        assert_int_equal(w.ranks[r].held.kind, AGREE_LOST);
        assert_int_equal(w.ranks[r].held.other, 1);
    }
}
unit_function test_agree;
int test_agree(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_message_is_decoded_as_it_was_encoded),
        cmocka_unit_test(test_message_has_the_bytes_of_version_2),
        cmocka_unit_test(test_message_that_no_rank_can_send_is_refused),
        cmocka_unit_test(test_random_bytes_are_refused_or_handled),
        cmocka_unit_test_setup(test_rank_asks_after_waiting_for_50_ms, group_setup),
        cmocka_unit_test_setup(test_waiting_rank_asks_at_growing_intervals, group_setup),
        cmocka_unit_test_setup(test_silent_disagreement_is_known_within_a_second, group_setup),
        cmocka_unit_test_setup(test_late_disagreement_is_known_within_a_second, group_setup),
        cmocka_unit_test_setup(test_suspect_that_does_not_answer_is_accused, group_setup),
        cmocka_unit_test_setup(test_first_message_before_the_operation_is_reported_again, group_setup),
        cmocka_unit_test_setup(test_last_four_operations_are_compared, group_setup),
        cmocka_unit_test_setup(test_cause_names_the_first_difference, group_setup),
        cmocka_unit_test_setup(test_rank_that_asks_gets_the_decision, group_setup),
        cmocka_unit_test_setup(test_rank_that_asks_gets_an_answer, group_setup),
        cmocka_unit_test_setup(test_rank_asks_at_once_on_request, group_setup),
        cmocka_unit_test_setup(test_older_operations_are_not_compared, group_setup),
        cmocka_unit_test_setup(test_later_operations_are_not_compared, group_setup),
        cmocka_unit_test_setup(test_earlier_operation_may_succeed_after_a_failure, group_setup),
        cmocka_unit_test_setup(test_error_of_a_rank_precedes_its_loss, group_setup),
        cmocka_unit_test_setup(test_abort_reaches_all_ranks_within_10_ms, group_setup),
        cmocka_unit_test_setup(test_other_ranks_decide_without_a_stopped_speaker, group_setup),
        cmocka_unit_test_setup(test_other_host_decides_without_a_stopped_host, group_setup),
        cmocka_unit_test_setup(test_death_of_a_host_is_reported_on_the_other, group_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
