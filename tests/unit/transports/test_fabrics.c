/* The table of fabrics: their numbers and names, lists of names, and the default, which depends on the RDMA ports that
   sysfs shows. */
#include "backend/transports/fabrics.h"
#include "tests/support/unit.h"
#include <sys/stat.h>

enum { ROOM = 256 };
static void remove_all(const char *folder)
{
    char command[ROOM];
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    assert_int_equal(system(command), 0);
}
static void add_port(const char *folder, const char *device, int port, const char *state)
{
    char path[ROOM];
    snprintf(path, sizeof path, "mkdir -p '%s/%s/ports/%d'", folder, device, port);
    assert_int_equal(system(path), 0);
    snprintf(path, sizeof path, "%s/%s/ports/%d/state", folder, device, port);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(state, file);
    fclose(file);
}
static const char *default_in(const char *folder) { return fabric_name(fabric_find_default(folder)); }
static void test_the_default_is_ucx_if_an_rdma_port_is_active(void **state)
{
    (void)state;
    char folder[] = P_tmpdir "/devices-XXXXXX";
    assert_string_equal(default_in("/nowhere"), "tcp");
    assert_non_null(mkdtemp(folder));
    assert_string_equal(default_in(folder), "tcp");
    add_port(folder, "mlx5_0", 1, "1: DOWN\n");
    add_port(folder, "mlx5_1", 1, "2: INIT\n");
    assert_string_equal(default_in(folder), "tcp");
    add_port(folder, "mlx5_1", 2, "4: ACTIVE\n");
    assert_string_equal(default_in(folder), "ucx");
    remove_all(folder);
}
static void test_fabrics_are_found_by_number_and_by_name(void **state)
{
    (void)state;
    int count = 0;
    for (; fabric_name(count); count++) {
        assert_int_equal(fabric_number_by_name(fabric_name(count)), count);
        assert_string_equal(fabric_by_number(count)->operations->name, fabric_name(count));
    }
    assert_int_equal(count, 3);
    assert_null(fabric_by_number(count));
    assert_null(fabric_by_number(-1));
    assert_int_equal(fabric_number_by_name("carrier pigeon"), FABRIC_UNKNOWN);
    assert_int_equal(fabric_number_by_name(""), fabric_find_default("/sys/class/infiniband"));
}
static void test_lists_of_names_are_parsed_and_printed(void **state)
{
    (void)state;
    char text[FABRIC_TEXT_BYTES];
    unsigned tcp = 1u << fabric_number_by_name("tcp"), ucx = 1u << fabric_number_by_name("ucx"),
             verbs = 1u << fabric_number_by_name("verbs");
    assert_int_equal(fabrics_parse_names("tcp", text), tcp);
    assert_int_equal(fabrics_parse_names("verbs,ucx", text), verbs | ucx);
    assert_int_equal(fabrics_parse_names("ucx,verbs,ucx", NULL), verbs | ucx);
    assert_int_equal(fabrics_parse_names("", NULL), 1u << fabric_number_by_name(""));
    assert_int_equal(fabrics_parse_names("tcp,pigeon,ucx", text), 0);
    assert_string_equal(text, "pigeon");
    assert_int_equal(fabrics_parse_names("tcp,,ucx", text), 0);
    assert_string_equal(text, "");
    assert_int_equal(fabrics_parse_names("tcp, ucx", NULL), 0);
    fabrics_print_names(verbs | ucx | tcp, text);
    assert_string_equal(text, "ucx and verbs and tcp");
    fabrics_print_names(0, text);
    assert_string_equal(text, "");
}
unit_function test_fabrics;
int test_fabrics(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_default_is_ucx_if_an_rdma_port_is_active),
        cmocka_unit_test(test_fabrics_are_found_by_number_and_by_name),
        cmocka_unit_test(test_lists_of_names_are_parsed_and_printed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
