/* What is set wrongly is warned about: the variable, its value, what is allowed and what is used instead. */
#include "backend/base/log.h"
#include "backend/base/settings.h"
#include "tests/support/said.h"
#include "tests/support/unit.h"

static const char *said_of(const char *variable, const char *value)
{
    setenv(variable, value, 1);
    const char *said = said_by(settings_reload);
    unsetenv(variable);
    return said;
}
static void says(const char *variable, const char *value, const char *line)
{
    const char *said = said_of(variable, value);
    if (!strstr(said, line)) fail_msg("%s=%s: said \"%s\", not \"%s\"", variable, value, said, line);
}
static void out_of_range(void **state)
{
    (void)state;
    says("TUTTI_SLOTS", "99", "warn: TUTTI_SLOTS=99 is out of range (allowed: 0 to 8); using 0\n");
    assert_int_equal(settings_get()->slots, 0);
    says("TUTTI_TIMEOUT_MS", "-1", "TUTTI_TIMEOUT_MS=-1 is out of range (allowed: 1 or more); using 1800000\n");
    assert_int_equal(settings_get()->timeout_ms, 1800000);
    says("TUTTI_TILE_BYTES", "-4096", "TUTTI_TILE_BYTES=-4096 is out of range (allowed: 0 to 1073741824); using 0\n");
    says("TUTTI_SPINS", "-2", "TUTTI_SPINS=-2 is out of range (allowed: -1 or more); using -1\n");
    says("TUTTI_STREAMING", "2", "TUTTI_STREAMING=2 is out of range (allowed: -1 to 1); using -1\n");
    says("TUTTI_YIELDS", "99999999999999999999", "TUTTI_YIELDS=99999999999999999999 is out of range (allowed: -1 ");
}
static void no_number(void **state)
{
    (void)state;
    says("TUTTI_SLOTS", "many", "TUTTI_SLOTS=many is not a whole number (allowed: 0 to 8); using 0\n");
    says("TUTTI_SLOTS", "", "TUTTI_SLOTS= is not a whole number (allowed: 0 to 8); using 0\n");
    says("TUTTI_LOG", "loud", "TUTTI_LOG=loud is not a level (allowed: error, warn, info, debug); using warn\n");
}
static void the_ends_of_a_range_are_in_it(void **state)
{
    (void)state;
    assert_string_equal(said_of("TUTTI_SLOTS", "8"), "");
    assert_int_equal(settings_get()->slots, 8);
    assert_string_equal(said_of("TUTTI_STREAMING", "-1"), "");
    assert_string_equal(said_of("TUTTI_TIMEOUT_MS", "1"), "");
    assert_string_equal(said_of("TUTTI_TIMEOUT_MS", "9223372036854775807"), "");
}
static void every_default_is_in_its_range(void **state)
{
    const struct settings_row *rows;
    (void)state;
    for (int i = settings_table(&rows) - 1; i >= 0; i--)
        if (rows[i].range[0]) assert_string_equal(said_of(rows[i].variable, rows[i].value), "");
}
static void unknown_names(void **state)
{
    (void)state;
    says("TUTTI_SLOT", "1", "unknown setting TUTTI_SLOT, did you mean TUTTI_SLOTS?\n");
}
static void a_former_name_is_read_with_a_warning(void **state)
{
    (void)state;
    says("TUTTI_SILENCE_MS", "7000",
        "warn: TUTTI_SILENCE_MS is now called TUTTI_PEER_TIMEOUT_MS; the next version will not read the old name\n");
    assert_int_equal(settings_get()->peer_timeout_ms, 7000);
    setenv("TUTTI_PEER_TIMEOUT_MS", "8000", 1);
    says("TUTTI_SILENCE_MS", "7000",
        "TUTTI_SILENCE_MS is ignored, because TUTTI_PEER_TIMEOUT_MS, its new name, is set\n");
    assert_int_equal(settings_get()->peer_timeout_ms, 8000);
    unsetenv("TUTTI_PEER_TIMEOUT_MS");
    says("TUTTI_FIGURES", "line=300", "TUTTI_FIGURES is now called TUTTI_MACHINE;");
    assert_string_equal(settings_get()->parameters, "line=300");
}

unit_function test_settings;
int test_settings(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(out_of_range),
        cmocka_unit_test(no_number),
        cmocka_unit_test(the_ends_of_a_range_are_in_it),
        cmocka_unit_test(every_default_is_in_its_range),
        cmocka_unit_test(unknown_names),
        cmocka_unit_test(a_former_name_is_read_with_a_warning),
    };
    unsetenv("TUTTI_CACHE");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
