/* The builder reports each mistake of an algorithm with a text of its own, which names the rank if one rank made it. */
#include "tests/support/unit.h"
#include "tests/unit/schedule/plans.h"

static record_function *recorded;
static void record(struct schedule *s) { recorded(s); }
/* Expects that the builder refuses the algorithm for four ranks on two hosts; rank 1 is the root. */
static void expect(enum collective collective, record_function *function, const char *error)
{
    static const int sizes[] = { 2, 2 };
    static struct hosts hosts;
    struct algorithm algorithm = { .name = "wrong", .collective = collective, .record = record };
    struct plan p = plan_of(&algorithm, hosts_of(&hosts, sizes, 2), 1);
    recorded = function;
    p.shared = mask_all;
    assert_int_equal(plan_build(&p), TUTTI_INTERNAL);
    assert_string_equal(p.error, error);
    assert_true(p.cycle_rank < 0);
    plan_finish(&p);
}
static struct span out(const struct schedule *s) { return span_of_buffer(s, s->rank, OUTPUT); }
static struct span in(const struct schedule *s) { return span_of_buffer(s, s->rank, INPUT); }
static int peer(const struct schedule *s) { return s->rank ^ 1; }
static int far(const struct schedule *s) { return s->rank ^ 2; }

static void record_far(struct schedule *s) { step_copy(s, out(s), span_of_chunk(far(s), INPUT, 0)); }
static void test_access_to_another_host_is_an_error(void **state)
{
    (void)state;
    expect(ALLREDUCE, record_far, "rank 0: touches the memory of another host");
}
static void record_beyond(struct schedule *s) { step_copy(s, out(s), span_of_chunk(s->rank, INPUT, 1)); }
static void record_below(struct schedule *s) { step_copy(s, out(s), span_of_chunk(s->rank, SCRATCH, -1)); }
static void record_empty(struct schedule *s) { step_copy(s, out(s), (struct span){ s->rank, INPUT, 0, 0 }); }
static void test_span_out_of_range_is_an_error(void **state)
{
    (void)state;
    expect(ALLREDUCE, record_beyond, "rank 0: span out of range");
    expect(ALLREDUCE, record_below, "rank 0: span out of range");
    expect(ALLREDUCE, record_empty, "rank 0: span out of range");
}
static void record_lengths(struct schedule *s)
{
    schedule_cut(s, 2);
    step_copy(s, out(s), span_of_chunk(s->rank, INPUT, 0));
}
static void test_spans_of_different_lengths_are_an_error(void **state)
{
    (void)state;
    expect(ALLREDUCE, record_lengths, "rank 0: spans differ in length");
}
static void record_overlap(struct schedule *s)
{
    schedule_cut(s, 3);
    step_copy(s, (struct span){ s->rank, OUTPUT, 0, 2 }, (struct span){ s->rank, OUTPUT, 1, 2 });
}
static void test_overlapping_copy_is_an_error(void **state)
{
    (void)state;
    expect(ALLREDUCE, record_overlap, "rank 0: moves a span onto a part of itself");
}
static void record_itself(struct schedule *s)
{
    step_copy(s, out(s), in(s));
    step_reduce(s, out(s), out(s));
}
static void test_sum_into_itself_is_an_error(void **state)
{
    (void)state;
    expect(ALLREDUCE, record_itself, "rank 0: reduces a span into itself");
}
static void record_input(struct schedule *s) { step_copy(s, in(s), span_of_chunk(peer(s), INPUT, 0)); }
static void record_input_recv(struct schedule *s) { step_recv(s, in(s), peer(s)); }
static void test_write_into_an_input_is_an_error(void **state)
{
    (void)state;
    expect(ALLREDUCE, record_input, "rank 0: writes an input chunk");
    expect(ALLREDUCE, record_input_recv, "rank 0: writes an input chunk");
}
static void record_self(struct schedule *s) { step_send(s, in(s), s->rank); }
static void record_no_peer(struct schedule *s) { step_recv(s, out(s), s->size); }
static void test_message_without_a_receiver_is_an_error(void **state)
{
    (void)state;
    expect(ALLREDUCE, record_self, "rank 0: message without a receiver");
    expect(ALLREDUCE, record_no_peer, "rank 0: message without a receiver");
}
static void record_recv_at_peer(struct schedule *s) { step_recv(s, span_of_chunk(peer(s), OUTPUT, 0), peer(s)); }
static void test_receive_into_a_peer_is_an_error(void **state)
{
    (void)state;
    expect(ALLREDUCE, record_recv_at_peer, "rank 0: receives into a peer's memory");
}
static void record_also(struct schedule *s)
{
    step_copy(s, out(s), in(s));
    step_add_span(s, in(s));
}
static void test_span_without_a_message_is_an_error(void **state)
{
    (void)state;
    expect(ALLREDUCE, record_also, "rank 0: continues a message that was not begun");
}
static void record_late_cut(struct schedule *s)
{
    step_copy(s, out(s), in(s));
    schedule_cut(s, 2);
}
static void record_no_pieces(struct schedule *s) { schedule_cut(s, 0); }
static void record_uneven_cut(struct schedule *s) { schedule_cut(s, 1 + s->rank / 2); }
static void test_wrong_cut_is_an_error(void **state)
{
    (void)state;
    expect(ALLREDUCE, record_late_cut, "rank 0: divides the message after the first step");
    expect(ALLREDUCE, record_no_pieces, "rank 0: divides the message into no pieces, or too many");
    expect(ALLREDUCE, record_uneven_cut, "rank 2: divides the message differently from its peers");
}
static void record_root_output(struct schedule *s)
{
    if (s->rank == 0) step_copy(s, span_of_chunk(1, OUTPUT, 0), in(s));
    else step_copy(s, out(s), in(s));
}
static void record_peer_input(struct schedule *s)
{
    if (s->rank == 1) step_copy(s, out(s), span_of_chunk(0, INPUT, 0));
}
static void test_absent_buffer_is_an_error(void **state)
{
    (void)state;
    expect(REDUCE, record_root_output, "rank 2: rank 2 has no such buffer");
    expect(GATHER, record_also, "rank 0: rank 0 has no such buffer");
    expect(BROADCAST, record_peer_input, "rank 1: rank 0 has no such buffer");
    expect(SCATTER, record_peer_input, "rank 1: rank 0 has no such buffer");
}
static void record_two_writers(struct schedule *s)
{
    step_copy(s, span_of_chunk(layout_rank(s->layout, s->place.host, 0), OUTPUT, 0), in(s));
}
static void test_two_writers_of_a_chunk_are_an_error(void **state)
{
    (void)state;
    expect(ALLREDUCE, record_two_writers, "rank 1: two ranks write one chunk");
}
static void record_unwritten(struct schedule *s) { step_copy(s, out(s), span_of_chunk(peer(s), SCRATCH, 3)); }
static void test_read_of_an_unwritten_chunk_is_an_error(void **state)
{
    (void)state;
    expect(ALLREDUCE, record_unwritten, "rank 0: reads a chunk that is never written");
}
static void record_partly(struct schedule *s)
{
    schedule_cut(s, 2);
    step_copy(s, out(s), in(s));
    step_copy(s, span_of_chunk(s->rank, OUTPUT, 0), span_of_chunk(s->rank, INPUT, 0));
}
static void test_partly_finished_step_is_an_error(void **state)
{
    (void)state;
    expect(ALLREDUCE, record_partly, "rank 0: finishes only a part of the chunks of a step");
}
static void record_unanswered(struct schedule *s)
{
    if (s->rank == 0) step_send(s, in(s), 2);
}
static void record_unequal(struct schedule *s)
{
    if (s->rank == 0) step_send(s, in(s), 2);
    if (s->rank == 2) step_recv(s, span_new_scratch(s, 2), 0);
}
static void test_unmatched_message_is_an_error(void **state)
{
    (void)state;
    expect(ALLREDUCE, record_unanswered, "a message is never sent or never received");
    expect(ALLREDUCE, record_unequal, "a message is never sent or never received");
}
static void record_after(struct schedule *s)
{
    step_copy(s, out(s), span_of_chunk(s->rank, INPUT, 7));
    step_copy(s, out(s), span_of_chunk(far(s), INPUT, 0));
}
static void test_first_error_is_reported(void **state)
{
    (void)state;
    expect(ALLREDUCE, record_after, "rank 0: span out of range");
}
unit_function test_record_errors;
int test_record_errors(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_access_to_another_host_is_an_error),
        cmocka_unit_test(test_span_out_of_range_is_an_error),
        cmocka_unit_test(test_spans_of_different_lengths_are_an_error),
        cmocka_unit_test(test_overlapping_copy_is_an_error),
        cmocka_unit_test(test_sum_into_itself_is_an_error),
        cmocka_unit_test(test_write_into_an_input_is_an_error),
        cmocka_unit_test(test_message_without_a_receiver_is_an_error),
        cmocka_unit_test(test_receive_into_a_peer_is_an_error),
        cmocka_unit_test(test_span_without_a_message_is_an_error),
        cmocka_unit_test(test_wrong_cut_is_an_error),
        cmocka_unit_test(test_absent_buffer_is_an_error),
        cmocka_unit_test(test_two_writers_of_a_chunk_are_an_error),
        cmocka_unit_test(test_read_of_an_unwritten_chunk_is_an_error),
        cmocka_unit_test(test_partly_finished_step_is_an_error),
        cmocka_unit_test(test_unmatched_message_is_an_error),
        cmocka_unit_test(test_first_error_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
