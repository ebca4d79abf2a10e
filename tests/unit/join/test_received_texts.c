/* Texts that other processes have put into their records: they end within their fields, and have no control characters,
   so that an error or a log cannot be forged with them. */
#include "backend/join/join_result.h"
#include "backend/join/terms.h"
#include "tests/support/unit.h"

static void record_texts_are_printable(void **state)
{
    (void)state;
    struct member theirs = { .group = "a\nwarn: b\x1b[31m", .identity.host = "h\tost\x7f" }, copy;
    member_copy_record(&copy, &theirs);
    assert_string_equal(copy.group, "a?warn: b?[31m");
    assert_string_equal(copy.identity.host, "h?ost?");
}
static void texts_end_within_their_fields(void **state)
{
    (void)state;
    struct member theirs, copy;
    memset(&theirs, 'x', sizeof theirs);
    member_copy_record(&copy, &theirs);
    assert_int_equal(strnlen(copy.group, sizeof copy.group), sizeof copy.group - 1);
    assert_int_equal(strnlen(copy.identity.host, sizeof copy.identity.host), sizeof copy.identity.host - 1);
}
static void terms_texts_are_printable(void **state)
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
        cmocka_unit_test(record_texts_are_printable),
        cmocka_unit_test(texts_end_within_their_fields),
        cmocka_unit_test(terms_texts_are_printable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
