/* Texts in the records of other processes are terminated within their fields and freed of control characters, so that
   they cannot forge an error or a log. */
#include "backend/join/join_result.h"
#include "backend/join/terms.h"
#include "tests/support/unit.h"

static void test_texts_of_a_record_are_made_printable(void **state)
{
    (void)state;
    struct member theirs = { .group = "a\nwarn: b\x1b[31m", .identity.host = "h\tost\x7f" }, copy;
    member_copy_record(&copy, &theirs);
    assert_string_equal(copy.group, "a?warn: b?[31m");
    assert_string_equal(copy.identity.host, "h?ost?");
}
static void test_texts_of_a_record_are_terminated(void **state)
{
    (void)state;
    struct member theirs, copy;
    memset(&theirs, 'x', sizeof theirs);
    member_copy_record(&copy, &theirs);
    assert_int_equal(strnlen(copy.group, sizeof copy.group), sizeof copy.group - 1);
    assert_int_equal(strnlen(copy.identity.host, sizeof copy.identity.host), sizeof copy.identity.host - 1);
}
static void test_texts_of_terms_are_made_printable(void **state)
{
    (void)state;
    struct terms terms;
    memset(&terms, '\r', sizeof terms);
    strcpy(terms.name, "gr\xc3\xbcn\r\n");
    terms_make_printable(&terms);
    assert_string_equal(terms.name, "gr\xc3\xbcn??");
    assert_null(strchr(terms.members, '\r'));
    assert_null(strchr(terms.algorithms, '\r'));
    assert_int_equal(strlen(terms.members), sizeof terms.members - 1);
}

unit_function test_received_texts;
int test_received_texts(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts_of_a_record_are_made_printable),
        cmocka_unit_test(test_texts_of_a_record_are_terminated),
        cmocka_unit_test(test_texts_of_terms_are_made_printable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
