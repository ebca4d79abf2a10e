/* The settings warn of each wrong value. The warning gives the variable, its value, the allowed values and the value
   that is used instead. */
#include "backend/base/log.h"
#include "backend/base/settings.h"
#include "tests/support/said.h"
#include "tests/support/unit.h"

static const char *warnings_of(const char *variable, const char *value)
{
    setenv(variable, value, 1);
    const char *warnings = said_by(settings_reload);
    unsetenv(variable);
    return warnings;
}
static void expect_warning(const char *variable, const char *value, const char *line)
{
    const char *warnings = warnings_of(variable, value);
    if (!strstr(warnings, line)) fail_msg("%s=%s: no \"%s\" in \"%s\"", variable, value, line, warnings);
}
static void test_settings_warn_of_a_value_out_of_range(void **state)
{
    (void)state;
    expect_warning("TUTTI_SLOTS", "99", "warn: TUTTI_SLOTS=99 is out of range (allowed: 0 to 8); using 0\n");
    assert_int_equal(settings_get()->slots, 0);
    expect_warning("TUTTI_TIMEOUT_MS", "-1",
        "TUTTI_TIMEOUT_MS=-1 is out of range (allowed: 1 or more); using 1800000\n");
    assert_int_equal(settings_get()->timeout_ms, 1800000);
    expect_warning("TUTTI_TILE_BYTES", "-4096",
        "TUTTI_TILE_BYTES=-4096 is out of range (allowed: 0 to 1073741824); using 0\n");
    expect_warning("TUTTI_SPINS", "-2", "TUTTI_SPINS=-2 is out of range (allowed: -1 or more); using -1\n");
    expect_warning("TUTTI_STREAMING", "2", "TUTTI_STREAMING=2 is out of range (allowed: -1 to 1); using -1\n");
    expect_warning("TUTTI_YIELDS", "99999999999999999999",
        "TUTTI_YIELDS=99999999999999999999 is out of range (allowed: -1 ");
}
static void test_settings_warn_of_a_value_that_is_no_number_or_level(void **state)
{
    (void)state;
    expect_warning("TUTTI_SLOTS", "many", "TUTTI_SLOTS=many is not a whole number (allowed: 0 to 8); using 0\n");
    expect_warning("TUTTI_SLOTS", "", "TUTTI_SLOTS= is not a whole number (allowed: 0 to 8); using 0\n");
    expect_warning("TUTTI_LOG", "loud",
        "TUTTI_LOG=loud is not a level (allowed: error, warn, info, debug); using warn\n");
}
static void test_settings_accept_both_ends_of_a_range(void **state)
{
    (void)state;
    assert_string_equal(warnings_of("TUTTI_SLOTS", "8"), "");
    assert_int_equal(settings_get()->slots, 8);
    assert_string_equal(warnings_of("TUTTI_STREAMING", "-1"), "");
    assert_string_equal(warnings_of("TUTTI_TIMEOUT_MS", "1"), "");
    assert_string_equal(warnings_of("TUTTI_TIMEOUT_MS", "9223372036854775807"), "");
}
static void test_settings_accept_every_default(void **state)
{
    const struct settings_row *rows;
    (void)state;
    for (int i = settings_table(&rows) - 1; i >= 0; i--)
        if (rows[i].range[0]) assert_string_equal(warnings_of(rows[i].variable, rows[i].value), "");
}
static void test_settings_suggest_a_name_for_an_unknown_one(void **state)
{
    (void)state;
    expect_warning("TUTTI_SLOT", "1", "unknown setting TUTTI_SLOT, did you mean TUTTI_SLOTS?\n");
}
static void test_settings_read_a_former_name_with_a_warning(void **state)
{
    (void)state;
    expect_warning("TUTTI_SILENCE_MS", "7000",
        "warn: TUTTI_SILENCE_MS is now called TUTTI_PEER_TIMEOUT_MS; the next version will not read the old name\n");
    assert_int_equal(settings_get()->peer_timeout_ms, 7000);
    setenv("TUTTI_PEER_TIMEOUT_MS", "8000", 1);
    expect_warning("TUTTI_SILENCE_MS", "7000",
        "TUTTI_SILENCE_MS is ignored, because TUTTI_PEER_TIMEOUT_MS, its new name, is set\n");
    assert_int_equal(settings_get()->peer_timeout_ms, 8000);
    unsetenv("TUTTI_PEER_TIMEOUT_MS");
    expect_warning("TUTTI_FIGURES", "line=300", "TUTTI_FIGURES is now called TUTTI_MACHINE;");
    assert_string_equal(settings_get()->parameters, "line=300");
}

unit_function test_settings;
int test_settings(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_settings_warn_of_a_value_out_of_range),
        cmocka_unit_test(test_settings_warn_of_a_value_that_is_no_number_or_level),
        cmocka_unit_test(test_settings_accept_both_ends_of_a_range),
        cmocka_unit_test(test_settings_accept_every_default),
        cmocka_unit_test(test_settings_suggest_a_name_for_an_unknown_one),
        cmocka_unit_test(test_settings_read_a_former_name_with_a_warning),
    };
    unsetenv("TUTTI_CACHE");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
