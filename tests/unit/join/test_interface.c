/* The choice of the interface on which a process listens: one that TUTTI_SOCKET_IFNAME names, in its order, or else the
   one that leads to the host of the store. */
#include "backend/base/status.h"
#include "backend/join/interface.h"
#include "tests/support/unit.h"
#include <arpa/inet.h>

/* ---- choosing from a table ---- */
static struct interface row(const char *name, const char *address, bool up)
{
    struct interface i = { .up = up };
    snprintf(i.name, sizeof i.name, "%s", name);
    i.contact.family = strchr(address, ':') ? AF_INET6 : AF_INET;
    assert_int_equal(inet_pton(i.contact.family, address, i.contact.address), 1);
    return i;
}
static void expect_choice(const char *names, const char *address)
{
    const struct interface table[] = { row("lo", "127.0.0.1", true), row("lo", "::1", true),
        row("docker0", "172.17.0.1", true), row("eth1", "10.1.0.1", false), row("eth10", "fe80::10", true),
        row("eth10", "10.10.0.1", true), row("eth10", "fd00::10", true), row("eth2", "10.2.0.1", true),
        row("ib0", "fe80::1b", true) };
    char found[INET6_ADDRSTRLEN] = "none";
    const struct interface *i = interface_choose(table, (int)(sizeof table / sizeof *table), names);
    if (i) inet_ntop(i->contact.family, i->contact.address, found, sizeof found);
    if (strcmp(found, address) != 0) fail_msg("%s: %s instead of %s", names, found, address);
}
static void test_setting_gives_prefixes_of_names(void **state)
{
    (void)state;
    /* eth1 is down, and an fe80: address is link-local. */
    expect_choice("eth", "10.10.0.1");
    expect_choice("eth2", "10.2.0.1");
    expect_choice("eth1", "10.10.0.1");
    /* ib0 is named first, and has no other address. */
    expect_choice("ib,eth", "fe80::1b");
    expect_choice("wlan,eth2,eth", "10.2.0.1");
    expect_choice("wlan", "none");
    /* Loopback is chosen if it is named. */
    expect_choice("lo", "127.0.0.1");
    expect_choice(",", "none");
}
static void test_equals_sign_demands_whole_names(void **state)
{
    (void)state;
    expect_choice("=eth1", "none");
    expect_choice("=eth", "none");
    /* A leading "=" is for all names of the list, a later one for its name. */
    expect_choice("=eth1,eth2", "10.2.0.1");
    expect_choice("eth1x,=eth2", "10.2.0.1");
    expect_choice("=lo", "127.0.0.1");
}
static void test_caret_excludes_names_and_loopback(void **state)
{
    (void)state;
    expect_choice("^docker", "10.10.0.1");
    expect_choice("^docker,eth1", "10.2.0.1");
    expect_choice("^docker,eth", "fe80::1b");
    expect_choice("^=eth1,docker0", "10.10.0.1");
    /* Loopback is always excluded. */
    expect_choice("^docker,eth,ib", "none");
}
static void test_empty_setting_takes_the_first_interface(void **state)
{
    (void)state;
    expect_choice("", "172.17.0.1");
    assert_null(interface_choose(NULL, 0, ""));
    assert_null(interface_choose(NULL, 0, "eth"));
}

/* ---- the interfaces of this machine ---- */
static void test_unknown_name_is_an_error(void **state)
{
    struct sock_address found = { .family = 0 };
    (void)state;
    assert_int_equal(interface_find_address("=no such", NULL, &found), TUTTI_INVALID_ARGUMENT);
    const char *text = status_detail();
    assert_non_null(strstr(text, "TUTTI_SOCKET_IFNAME==no such: no such network interface is up and has an address"));
    assert_int_equal(found.family, 0);
    if (interface_find_address("lo", NULL, &found) != TUTTI_OK) skip();
    assert_int_equal(interface_find_address("=no such", NULL, &found), TUTTI_INVALID_ARGUMENT);
    assert_non_null(strstr(status_detail(), "lo (127.0.0.1)"));
}
static void test_loopback_is_used_only_if_named(void **state)
{
    struct sock_address found;
    char name[INTERFACE_NAME_BYTES];
    const char *hosts[] = { NULL, "127.0.0.1", "::1", "localhost", "no.such.host.invalid" };
    (void)state;
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        assert_int_equal(interface_find_address("", hosts[i], &found), TUTTI_OK);
        assert_true(!found.family || !sock_address_is_loopback(&found));
        assert_int_equal(found.port, 0);
    }
    if (interface_find_address("lo", NULL, &found) != TUTTI_OK) skip();
    assert_true(sock_address_is_loopback(&found));
    interface_find_name(&found, name);
    assert_string_equal(name, "lo");
}
/* Returns the name of the interface that is faster than eth0 with that speed, or "none". */
static const char *find_faster(int speed, const char *other, int other_speed, const char *address, bool up)
{
    struct interface table[] = { row("eth0", "10.0.0.1", true), row("lo", "127.0.0.1", true), row(other, address, up) };
    table[0].speed = speed;
    table[2].speed = other_speed;
    const struct interface *faster = interface_find_faster(table, 3, &table[0]);
    return faster ? (faster == &table[2] ? other : "wrong") : "none";
}
static void test_faster_interface_is_found(void **state)
{
    (void)state;
    assert_string_equal(find_faster(1000, "ib0", 100000, "10.1.0.1", true), "ib0");
    assert_string_equal(find_faster(1000, "eth1", 2000, "10.1.0.1", true), "eth1");
    assert_string_equal(find_faster(1000, "eth1", 1999, "10.1.0.1", true), "none");
    assert_string_equal(find_faster(0, "ib0", 100000, "10.1.0.1", true), "none");
    assert_string_equal(find_faster(1000, "ib0", 100000, "10.1.0.1", false), "none");
    assert_string_equal(find_faster(1000, "ib0", 100000, "fe80::1b", true), "none");
    assert_string_equal(find_faster(1000, "lo1", 100000, "127.0.0.2", true), "none");
}
/* An address of this machine leads to its own interface. */
static void test_interface_to_the_store_is_used(void **state)
{
    struct sock_address here, found;
    char text[INET6_ADDRSTRLEN], name[INTERFACE_NAME_BYTES];
    (void)state;
    assert_int_equal(interface_find_address("", NULL, &here), TUTTI_OK);
    if (!here.family) { print_message("skipped: no interface but loopback is up\n"); skip(); }
    inet_ntop(here.family, here.address, text, sizeof text);
    assert_int_equal(interface_find_address("", text, &found), TUTTI_OK);
    assert_memory_equal(found.address, here.address, sizeof here.address);
    interface_find_name(&found, name);
    assert_true(name[0] != 0);
    assert_int_equal(interface_find_address(name, "127.0.0.1", &found), TUTTI_OK);
    assert_false(sock_address_is_loopback(&found));
}

unit_function test_interface;
int test_interface(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_setting_gives_prefixes_of_names),
        cmocka_unit_test(test_equals_sign_demands_whole_names),
        cmocka_unit_test(test_caret_excludes_names_and_loopback),
        cmocka_unit_test(test_empty_setting_takes_the_first_interface),
        cmocka_unit_test(test_unknown_name_is_an_error),
        cmocka_unit_test(test_loopback_is_used_only_if_named),
        cmocka_unit_test(test_interface_to_the_store_is_used),
        cmocka_unit_test(test_faster_interface_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
