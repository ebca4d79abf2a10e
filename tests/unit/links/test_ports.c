/* The ports at which links listen: the form of TUTTI_PORTS, ports that are taken, and a range that is used up. */
#include "backend/base/settings.h"
#include "backend/base/status.h"
#include "backend/links/ports.h"
#include "backend/links/tcp.h"
#include "tests/support/unit.h"
#include <errno.h>
#include <sys/socket.h>

static const struct sock_address loopback = { .family = AF_INET, .address = { 127, 0, 0, 1 } };
static void set_ports(const char *ports)
{
    setenv("TUTTI_PORTS", ports, 1);
    settings_reload();
}
static int reset_ports(void **state)
{
    (void)state;
    unsetenv("TUTTI_PORTS");
    settings_reload();
    return 0;
}
/* Sets a range of `count` ports that begins with a port at which this process listens. Returns that socket. */
static int set_range_from_taken_port(int count, int *first)
{
    char text[32];
    reset_ports(NULL);
    for (;;) {
        int taken = tcp_listen(&loopback);
        assert_true(taken >= 0);
        *first = tcp_local_address(taken).port;
        if (*first + count - 1 <= UINT16_MAX) {
            snprintf(text, sizeof text, "%d-%d", *first, *first + count - 1);
            set_ports(text);
            return taken;
        }
        close(taken);
    }
}

static void test_range_has_two_ports_in_order(void **state)
{
    static const char *const wrong[] = { "30000", "30000-", "-30000", "0-10", "20-10", "1-65536", "1-2-3", "1-2 ",
        " 1-2", "+1-2", "1--2", "a-b", "000001-000002", "99999999999999999999-99999999999999999999" };
    struct port_range range;
    (void)state;
    assert_true(port_range_parse("", &range) && range.first == 0 && range.last == 0);
    assert_true(port_range_parse("1-65535", &range) && range.first == 1 && range.last == 65535);
    assert_true(port_range_parse("30000-30000", &range) && range.first == 30000 && range.last == 30000);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_false(port_range_parse(wrong[i], &range));
        assert_true(range.first == 0 && range.last == 0);
        set_ports(wrong[i]);
        assert_int_equal(ports_check_setting(), TUTTI_INVALID_ARGUMENT);
        assert_non_null(strstr(status_detail(), "TUTTI_PORTS="));
        assert_non_null(strstr(status_detail(), wrong[i]));
    }
}
static void test_taken_port_is_skipped(void **state)
{
    enum { COUNT = 200 };
    int first, taken = set_range_from_taken_port(COUNT, &first);
    (void)state;
    for (int i = 0; i < 2; i++) {
        int socket = tcp_listen(&loopback), port = tcp_local_address(socket).port;
        assert_true(socket >= 0 && port > first && port < first + COUNT);
        close(socket);
    }
    close(taken);
}
static void test_used_up_range_is_an_error_with_its_size(void **state)
{
    char why[PORTS_TEXT_BYTES], expected[64];
    int first, taken = set_range_from_taken_port(1, &first);
    (void)state;
    assert_int_equal(tcp_listen(&loopback), -EADDRINUSE);
    ports_print_listen_error(-EADDRINUSE, why);
    snprintf(expected, sizeof expected, "TUTTI_PORTS=%d-%d is used up", first, first);
    assert_non_null(strstr(why, expected));
    assert_non_null(strstr(why, "ports taken: 1"));
    assert_non_null(strstr(why, "Set a larger range"));
    assert_string_equal(ports_print_listen_error(-EADDRNOTAVAIL, why), strerror(EADDRNOTAVAIL));
    close(taken);
    /* The range does not apply to a port that the caller names. */
    struct sock_address named = loopback;
    named.port = (uint16_t)first;
    set_ports("1-1");
    int socket = tcp_listen(&named);
    assert_true(socket >= 0 && tcp_local_address(socket).port == first);
    close(socket);
}
unit_function test_ports;
int test_ports(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_range_has_two_ports_in_order, reset_ports),
        cmocka_unit_test_teardown(test_taken_port_is_skipped, reset_ports),
        cmocka_unit_test_teardown(test_used_up_range_is_an_error_with_its_size, reset_ports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
