/* The matching alone: order, any peer, cancelling, withdrawing, and the reuse of memory. */
#include "backend/base/memory.h"
#include "backend/transports/matching.h"
#include "tests/support/unit.h"

static struct message_name named(uint64_t name) { return (struct message_name){ name % 5, name }; }
static struct transfer receive(int peer, uint64_t name)
{
    return (struct transfer){ .peer = peer, .name = named(name) };
}
static struct arrival *arrive(struct matching *m, int source, uint64_t name, uint64_t id)
{
    struct arrival *a = matching_arrival_new(m, 100);
    assert_non_null(a);
    a->source = source;
    a->name = named(name);
    a->id = id;
    a->is_announced = id != 0;
    matching_keep_arrival(m, a);
    return a;
}
static void test_receives_are_taken_in_order_of_posting(void **state)
{
    (void)state;
    struct matching m = { 0 };
    struct transfer first = receive(1, 7), any = receive(TRANSFER_ANY_PEER, 7), last = receive(1, 7),
                    other = receive(1, 8);
    assert_null(matching_post_receive(&m, &other));
    assert_null(matching_post_receive(&m, &first));
    assert_null(matching_post_receive(&m, &any));
    assert_null(matching_post_receive(&m, &last));
    assert_ptr_equal(matching_take_receive(&m, 1, named(7)), &first);
    assert_ptr_equal(matching_take_receive(&m, 2, named(7)), &any);
    assert_null(matching_take_receive(&m, 2, named(7)));
    assert_ptr_equal(matching_take_receive(&m, 1, named(7)), &last);
    assert_null(matching_pop_receive(&m, 2));
    assert_ptr_equal(matching_pop_receive(&m, 1), &other);
    assert_null(matching_pop_receive(&m, TRANSFER_ANY_PEER));
    matching_finish(&m);
}
static void test_arrivals_are_taken_in_order_of_arrival(void **state)
{
    (void)state;
    struct matching m = { 0 };
    struct transfer from_two = receive(2, 7), any = receive(TRANSFER_ANY_PEER, 7), from_one = receive(1, 7);
    struct arrival *a = arrive(&m, 1, 7, 0), *b = arrive(&m, 2, 7, 0), *c = arrive(&m, 1, 7, 0);
    assert_ptr_equal(matching_post_receive(&m, &from_two), b);
    assert_ptr_equal(matching_post_receive(&m, &any), a);
    assert_ptr_equal(matching_post_receive(&m, &from_one), c);
    assert_null(matching_post_receive(&m, &from_two));
    matching_arrival_free(&m, a);
    matching_arrival_free(&m, b);
    matching_arrival_free(&m, c);
    matching_finish(&m);
}
/* Popping for one peer returns the receives that only this peer could answer, popping for any peer returns all. */
static void test_pop_returns_the_receives_of_a_peer(void **state)
{
    (void)state;
    struct matching m = { 0 };
    struct transfer any = receive(TRANSFER_ANY_PEER, 7), two = receive(2, 7), one = receive(1, 7), last = receive(2, 9);
    struct transfer *all[] = { &any, &two, &one, &last };
    for (int i = 0; i < 4; i++) assert_null(matching_post_receive(&m, all[i]));
    struct transfer *first = matching_pop_receive(&m, 2), *second = matching_pop_receive(&m, 2);
    assert_true((first == &two && second == &last) || (first == &last && second == &two));
    assert_null(matching_pop_receive(&m, 2));
    assert_ptr_equal(matching_pop_receive(&m, TRANSFER_ANY_PEER), &any);
    assert_ptr_equal(matching_pop_receive(&m, TRANSFER_ANY_PEER), &one);
    assert_null(matching_pop_receive(&m, TRANSFER_ANY_PEER));
    matching_finish(&m);
}
/* Names differ also if operations are 2^22 or 2^32 apart, and for tile 2^20 of an operation. */
static void test_names_of_distant_operations_and_tiles_differ(void **state)
{
    (void)state;
    static const struct message_name names[] = { { 5, 7 }, { 5 + (1 << 22), 7 }, { 6, 7 }, { 5, (uint64_t)1 << 52 | 7 },
        { OPERATION_OF_USER, 7 }, { 5 + ((uint64_t)1 << 32), 7 } };
    enum { NAMES = sizeof names / sizeof *names };
    struct transfer x[NAMES];
    struct matching m = { 0 };
    for (int i = 0; i < NAMES; i++) {
        x[i] = (struct transfer){ .name = names[i] };
        assert_null(matching_post_receive(&m, &x[i]));
    }
    for (int i = NAMES - 1; i >= 0; i--) assert_ptr_equal(matching_take_receive(&m, 0, names[i]), &x[i]);
    matching_finish(&m);
}
/* A message meets a receive of another type, which then refuses it. */
static void test_names_of_different_types_meet(void **state)
{
    (void)state;
    struct matching m = { 0 };
    struct transfer x = { .name = message_name_of_user(7, TUTTI_INT32) };
    matching_post_receive(&m, &x);
    assert_ptr_equal(matching_take_receive(&m, 0, message_name_of_user(7, TUTTI_FLOAT32)), &x);
    assert_false(transfer_meet_message(&x, 0, message_name_of_user(7, TUTTI_FLOAT32), 0));
    assert_int_equal(x.status, TUTTI_MISMATCH);
    assert_int_equal(x.peer_dtype, TUTTI_FLOAT32);
    matching_finish(&m);
}
static void test_a_cancelled_receive_is_passed_over(void **state)
{
    (void)state;
    struct matching m = { 0 };
    struct transfer first = receive(1, 7), second = receive(1, 7), third = receive(1, 7);
    matching_post_receive(&m, &first);
    matching_post_receive(&m, &second);
    assert_true(matching_cancel_receive(&m, &second));
    assert_false(matching_cancel_receive(&m, &second));
    /* The cancelled receive was the last of its list. */
    matching_post_receive(&m, &third);
    assert_ptr_equal(matching_take_receive(&m, 1, named(7)), &first);
    assert_ptr_equal(matching_take_receive(&m, 1, named(7)), &third);
    matching_finish(&m);
}
static void test_only_announcements_are_withdrawn(void **state)
{
    (void)state;
    static const char another_way;
    const struct transport *another = (const void *)&another_way;
    struct matching m = { 0 };
    arrive(&m, 1, 7, 0);
    struct arrival *announced = arrive(&m, 1, 7, 5);
    arrive(&m, 2, 7, 5);
    arrive(&m, 1, 9, 6);
    assert_null(matching_withdraw_arrival(&m, NULL, 1, named(7), 6));
    assert_null(matching_withdraw_arrival(&m, NULL, 1, named(7), 0));
    /* The announcement with this id came by another transport. */
    assert_null(matching_withdraw_arrival(&m, another, 1, named(7), 5));
    assert_ptr_equal(matching_withdraw_arrival(&m, NULL, 1, named(7), 5), announced);
    matching_arrival_free(&m, announced);
    matching_withdraw_all(&m, 1);
    struct transfer x = receive(1, 9), y = receive(1, 7), z = receive(2, 7);
    assert_null(matching_post_receive(&m, &x));
    matching_arrival_free(&m, matching_post_receive(&m, &y));
    matching_arrival_free(&m, matching_post_receive(&m, &z));
    matching_finish(&m);
}
static void test_freed_arrivals_are_reused(void **state)
{
    (void)state;
    struct matching m = { 0 };
    struct arrival *large = matching_arrival_new(&m, 4096), *small = matching_arrival_new(&m, 64);
    matching_arrival_free(&m, large);
    matching_arrival_free(&m, small);
    memory_fail_after(1);
    assert_ptr_equal(matching_arrival_new(&m, 1), small);
    assert_ptr_equal(matching_arrival_new(&m, 2049), large);
    assert_null(matching_arrival_new(&m, 64));
    matching_arrival_free(&m, large);
    matching_arrival_free(&m, small);
    matching_finish(&m);
}
/* Each of 3,000 names has a receive. They are answered in reverse order. */
static void test_many_names_find_their_receives(void **state)
{
    (void)state;
    enum { MANY = 3000 };
    static struct transfer x[MANY];
    struct matching m = { 0 };
    for (int i = 0; i < MANY; i++) {
        x[i] = receive(i % 5, (uint64_t)i << 20);
        assert_null(matching_post_receive(&m, &x[i]));
    }
    for (int i = MANY - 1; i >= 0; i--)
        assert_ptr_equal(matching_take_receive(&m, i % 5, named((uint64_t)i << 20)), &x[i]);
    matching_finish(&m);
}
unit_function test_matching;
int test_matching(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_receives_are_taken_in_order_of_posting),
        cmocka_unit_test(test_arrivals_are_taken_in_order_of_arrival),
        cmocka_unit_test(test_pop_returns_the_receives_of_a_peer),
        cmocka_unit_test(test_names_of_distant_operations_and_tiles_differ),
        cmocka_unit_test(test_names_of_different_types_meet),
        cmocka_unit_test(test_a_cancelled_receive_is_passed_over),
        cmocka_unit_test(test_only_announcements_are_withdrawn),
        cmocka_unit_test(test_freed_arrivals_are_reused),
        cmocka_unit_test(test_many_names_find_their_receives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
