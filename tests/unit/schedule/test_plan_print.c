/* Plans as text: a whole plan, the text of every kind of step, and buffers that are too small. */
#include "tests/support/unit.h"
#include "tests/unit/check/hierarchies.h"
#include "tests/unit/schedule/examples.h"

static struct hosts hosts;
static char text[8192];

static void print(struct plan *p)
{
    assert_int_equal(plan_build(p), TUTTI_OK);
    size_t length = plan_print(p, text, sizeof text);
    assert_int_equal(length, strlen(text));
    plan_finish(p);
}
static void expect_line(const char *line)
{
    if (!strstr(text, line)) fail_msg("\"%s\" is not in\n%s", line, text);
}
static void test_plan_is_printed_line_by_line(void **state)
{
    struct plan p = plan_of(&one_shot, together(&hosts, 2), 0);
    (void)state;
    p.slots = 2;
    print(&p);
    assert_string_equal(text,
        "one_shot: 2 ranks on 1 host, message cut in 1, 1 slot of scratch\n"
        "  0:0   slot[0] = in[0]                                 slot free after 1:1; prelude; published\n"
        "  0:1   out[0] = in[0] + r1.slot[0]                     after 1:0; finish; published\n"
        "  1:0   slot[0] = in[0]                                 slot free after 0:1; prelude; published\n"
        "  1:1   out[0] = r0.slot[0] + in[0]                     after 0:0; finish; published\n");
}
static void test_messages_and_waits_are_printed(void **state)
{
    static const int sizes[] = { 2, 2 };
    struct plan p = plan_of(&hierarchies[3], hosts_of(&hosts, sizes, 2), 0);
    (void)state;
    p.shared = mask_all;
    print(&p);
    expect_line("send in[2], r1.in[2] -> 2\n");
    expect_line("recv out[2], out[3] <- 2");
    expect_line("await  ");
    expect_line("leave  ");
    expect_line("after message 0");
    expect_line("every tile after 1:");
}
static void test_premultiplied_inputs_are_printed_as_raw(void **state)
{
    struct plan p = plan_of(&ring, apart(&hosts, 3), 0);
    (void)state;
    p.stage_inputs = true;
    print(&p);
    expect_line("prelude; raw");
}
static void test_small_buffer_gets_the_beginning(void **state)
{
    struct plan p = plan_of(&ring, apart(&hosts, 3), 0);
    char small[16], whole[8192];
    (void)state;
    assert_int_equal(plan_build(&p), TUTTI_OK);
    size_t length = plan_print(&p, whole, sizeof whole);
    assert_int_equal(plan_print(&p, small, sizeof small), length);
    assert_int_equal(strlen(small), sizeof small - 1);
    assert_memory_equal(small, whole, sizeof small - 1);
    assert_int_equal(plan_print(&p, NULL, 0), length);
    char *exact = calloc(1, length + 1);
    assert_int_equal(plan_print(&p, exact, length + 1), length);
    assert_string_equal(exact, whole);
    free(exact);
    plan_finish(&p);
}
unit_function test_plan_print;
int test_plan_print(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_is_printed_line_by_line),
        cmocka_unit_test(test_messages_and_waits_are_printed),
        cmocka_unit_test(test_premultiplied_inputs_are_printed_as_raw),
        cmocka_unit_test(test_small_buffer_gets_the_beginning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
