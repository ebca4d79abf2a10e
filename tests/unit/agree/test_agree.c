/* The wire form against bad input, and the times of agree.h with a clock that the test moves: who asks when, when a
   disagreement is known everywhere, and how long a rank waits for hosts that do not answer. */
#include "backend/agree/agree.h"
#include "include/tutti.h"
#include "tests/support/unit.h"

enum { RANKS = 4, HOSTS = 2, QUEUE = 256, DELAY_MS = 1, BEGIN_MS = 1000 };
static const int host_of[RANKS] = { 0, 1, 0, 1 };                      /* round robin */

/* ---- the wire form ---- */
static uint64_t random_state;
static uint64_t random_next(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}
static struct agree_message a_failure(void)
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
    strcpy(m.cause.detail, "what the engine says");
    return m;
}
static struct agree_message a_question(void)
{
    struct agree_message m;
    memset(&m, 0, sizeof m);
    m.kind = AGREE_ASK;
    m.calls[0].number = 7;
    m.calls[0].fingerprint = 100;
    return m;
}
static void test_what_is_encoded_is_decoded(void **state)
{
    (void)state;
    struct agree_message messages[] = { a_failure(), a_question() }, back;
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
static void test_the_bytes_are_those_of_version_2(void **state)
{
    (void)state;
    static const unsigned char expected[] = { 2, 0, AGREE_FAIL, 0, 1, 0, 0, 0 };
    struct agree_message m = a_failure();
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
static void test_what_no_rank_says_is_refused(void **state)
{
    (void)state;
    REFUSE(a_failure, m.kind = AGREE_MESSAGES);
    REFUSE(a_failure, m.decided = 2);
    REFUSE(a_question, m.decided = 1);
    REFUSE(a_failure, m.cause.kind = AGREE_KINDS);
    REFUSE(a_failure, m.cause.kind = -1);
    REFUSE(a_failure, m.cause.status = TUTTI_OK);
    REFUSE(a_failure, m.cause.reporter = RANKS);
    REFUSE(a_failure, m.cause.reporter = -1);
    REFUSE(a_failure, m.cause.other = RANKS);
    REFUSE(a_failure, m.cause.other = -1);              /* a disagreement is with somebody */
    REFUSE(a_failure, m.cause.operation = 0);
    REFUSE(a_failure, m.cause.operation = UINT64_MAX);
    REFUSE(a_failure, m.cause.calls[1].number = UINT64_MAX);
    REFUSE(a_failure, memset(m.cause.detail, 'x', sizeof m.cause.detail));
    REFUSE(a_question, m.calls[0].number = UINT64_MAX);
}
/* Whatever bytes come: what is accepted is in range, and an object that is given it stays sound. */
static void test_any_bytes(void **state)
{
    (void)state;
    struct agree_peer peers[RANKS];
    int hosts[HOSTS];
    struct agree_layout layout = { 0, RANKS, HOSTS, host_of, peers, hosts };
    struct agree_message good[] = { a_failure(), a_question() }, m;
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

/* ---- ranks, hosts and links in a time of their own ---- */
struct queued_message { int from, to; int64_t at_ms; struct agree_message message; };
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
static void rank_write_records(int r)                               /* what a caller does after each input */
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
static void time_pass(int64_t until_ms)                      /* ranks look at words and clock every millisecond */
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
    struct agree_cause cause = a_failure().cause;
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
static void test_nobody_asks_within_50_ms(void **state)
{
    (void)state;
    rank_begin_call(0, 1, 5, 1);
    time_pass(BEGIN_MS + 50);
    assert_int_equal(w.asked, 0);
    time_pass(BEGIN_MS + 52);
    assert_int_equal(w.asked, 1);
    agree_set_waiting(&w.ranks[0], 1, false);                  /* it has come */
    time_pass(BEGIN_MS + 5000);
    assert_int_equal(w.asked, 1);
}
static void test_who_waits_long_asks_more_seldom(void **state)
{
    (void)state;
    rank_begin_call(0, 1, 5, 1);
    time_pass(BEGIN_MS + 10000);                             /* after 50, 150, 350, 750 ms, then each 400 */
    assert_in_range(w.asked, 20, 28);
    assert_int_equal(w.ranks[0].state, AGREE_RUNS);     /* rank 1 is late, and no more */
}
/* Nobody sends anything: each waits for the other. */
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
/* The worst case: rank 1 has long been asked in vain when it begins, and asks nobody itself. */
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
static void test_first_message_too_early_is_told_again(void **state)
{
    (void)state;
    assert_false(agree_on_first_message(&w.ranks[0], 1, 1, 6));
    rank_begin_call(0, 1, 5, -1);
    assert_true(agree_on_first_message(&w.ranks[0], 1, 1, 6));
    assert_false(agree_try_end_operation(&w.ranks[0], 1));
}
/* Rank 0 is far ahead of what rank 1 asks about. */
static void answer_about(uint64_t number, uint64_t fingerprint)
{
    struct agree_message m = a_question();
    for (uint64_t n = 1; n <= 6; n++) {
        rank_begin_call(0, n, 50 + n, -1);
        assert_true(agree_try_end_operation(&w.ranks[0], n));
    }
    m.calls[0].number = number;
    m.calls[0].fingerprint = fingerprint;
    agree_handle_message(&w.ranks[0], 1, &m);
}
static void test_the_last_four_operations_are_compared(void **state)
{
    (void)state;
    answer_about(3, 99);
    assert_int_equal(w.ranks[0].state, AGREE_CLAIMS);
    assert_int_equal(w.ranks[0].held.operation, 3);
    assert_int_equal(w.ranks[0].held.calls[0].fingerprint, 53);
    assert_int_equal(w.ranks[0].held.calls[1].fingerprint, 99);
}
/* What differs later differs because of it. */
static void test_the_first_difference_is_told(void **state)
{
    (void)state;
    struct agree_message m = a_question();
    for (uint64_t n = 1; n <= 6; n++) rank_begin_call(0, n, 50 + n, -1);
    for (uint64_t i = 0; i < 3; i++) m.calls[i].number = 6 - i, m.calls[i].fingerprint = 90 + i;
    m.calls[3].number = 3;
    m.calls[3].fingerprint = 53;
    agree_handle_message(&w.ranks[0], 1, &m);
    assert_int_equal(w.ranks[0].held.operation, 4);
    assert_int_equal(w.ranks[0].held.calls[0].fingerprint, 54);
    assert_int_equal(w.ranks[0].held.calls[1].fingerprint, 92);
}
static void test_a_rank_that_asks_gets_the_decision(void **state)
{
    (void)state;
    struct agree_message m = a_question(), answer;
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
/* A question says all that is compared; the answer is for the asker, whom no wrong decision would make miss it. */
static void test_who_asks_is_answered(void **state)
{
    (void)state;
    struct agree_message m = a_question(), answer;
    int to;
    rank_begin_call(0, 7, 100, -1);
    agree_handle_message(&w.ranks[0], 1, &m);
    assert_true(agree_next_message(&w.ranks[0], &to, &answer));
    assert_int_equal(to, 1);
    assert_int_equal(answer.kind, AGREE_ANSWER);
    assert_int_equal(answer.calls[7 % AGREE_HISTORY].number, 7);
}
static void test_who_hurries_asks_at_once(void **state)
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
static void test_operations_to_come_are_not_compared(void **state)
{
    (void)state;
    answer_about(7, 99);
    assert_int_equal(w.ranks[0].state, AGREE_RUNS);
}
static void test_an_earlier_operation_may_succeed_after_a_failure(void **state)
{
    (void)state;
    struct agree_cause cause = a_failure().cause;       /* of operation 7 */
    rank_begin_call(0, 6, 5, -1);
    agree_on_failure_record(&w.ranks[0], &cause);
    assert_true(agree_try_end_operation(&w.ranks[0], 6));
    rank_begin_call(0, 7, 5, -1);
    assert_false(agree_try_end_operation(&w.ranks[0], 7));
}
static void test_what_a_rank_raises_precedes_its_death(void **state)
{
    (void)state;
    abort_group(1);
    agree_on_peer_lost(&w.ranks[0], 1);                         /* its end is seen before its last words */
    rank_write_records(0);
    time_pass(BEGIN_MS + 100);
    for (int r = 0; r < RANKS; r++) assert_int_equal(w.ranks[r].held.kind, AGREE_ABORTED);
}
static void test_abort_is_told_at_once(void **state)
{
    (void)state;
    abort_group(3);
    time_pass(BEGIN_MS + 1000);
    for (int r = 0; r < RANKS; r++) {
        assert_over(r, 10);
        assert_int_equal(w.ranks[r].held.reporter, 3);
        assert_string_equal(w.ranks[r].held.detail, "what the engine says");
    }
}
static void test_stopped_speaker_holds_up_nobody(void **state)
{
    (void)state;
    w.stopped[1] = true;                                /* it speaks for ranks 1 and 3 */
    abort_group(3);
    time_pass(BEGIN_MS + 2000);
    for (int r = 0; r < RANKS; r++)
        if (r != 1) { assert_over(r, 700); assert_int_equal(w.ranks[r].held.reporter, 3); }
    w.stopped[1] = false;
    time_pass(w.now_ms + 10);
    assert_int_equal(w.ranks[1].state, AGREE_OVER);
    assert_int_equal(w.ranks[1].held.reporter, 3);
}
static void test_stopped_host_holds_up_nobody(void **state)
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
static void test_dead_host_is_told_on_the_other(void **state)
{
    (void)state;
    w.stopped[1] = w.stopped[3] = true;
    for (int r = 0; r < RANKS; r += 2)
        for (int dead = 1; dead < RANKS; dead += 2) { agree_on_peer_lost(&w.ranks[r], dead); rank_write_records(r); }
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
        cmocka_unit_test(test_what_is_encoded_is_decoded),
        cmocka_unit_test(test_the_bytes_are_those_of_version_2),
        cmocka_unit_test(test_what_no_rank_says_is_refused),
        cmocka_unit_test(test_any_bytes),
        cmocka_unit_test_setup(test_nobody_asks_within_50_ms, group_setup),
        cmocka_unit_test_setup(test_who_waits_long_asks_more_seldom, group_setup),
        cmocka_unit_test_setup(test_silent_disagreement_is_known_within_a_second, group_setup),
        cmocka_unit_test_setup(test_late_disagreement_is_known_within_a_second, group_setup),
        cmocka_unit_test_setup(test_suspect_that_does_not_answer_is_accused, group_setup),
        cmocka_unit_test_setup(test_first_message_too_early_is_told_again, group_setup),
        cmocka_unit_test_setup(test_the_last_four_operations_are_compared, group_setup),
        cmocka_unit_test_setup(test_the_first_difference_is_told, group_setup),
        cmocka_unit_test_setup(test_a_rank_that_asks_gets_the_decision, group_setup),
        cmocka_unit_test_setup(test_who_asks_is_answered, group_setup),
        cmocka_unit_test_setup(test_who_hurries_asks_at_once, group_setup),
        cmocka_unit_test_setup(test_older_operations_are_not_compared, group_setup),
        cmocka_unit_test_setup(test_operations_to_come_are_not_compared, group_setup),
        cmocka_unit_test_setup(test_an_earlier_operation_may_succeed_after_a_failure, group_setup),
        cmocka_unit_test_setup(test_what_a_rank_raises_precedes_its_death, group_setup),
        cmocka_unit_test_setup(test_abort_is_told_at_once, group_setup),
        cmocka_unit_test_setup(test_stopped_speaker_holds_up_nobody, group_setup),
        cmocka_unit_test_setup(test_stopped_host_holds_up_nobody, group_setup),
        cmocka_unit_test_setup(test_dead_host_is_told_on_the_other, group_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
