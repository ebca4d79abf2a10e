/* On which interface a process listens: what the setting names, in its order, else the way to the store's host. */
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
static void expect(const char *names, const char *address)
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
static void test_names_or_how_they_begin(void **state)
{
    (void)state;
    expect("eth", "10.10.0.1");                         /* eth1 is down, fe80: is of a link alone */
    expect("eth2", "10.2.0.1");
    expect("eth1", "10.10.0.1");
    expect("ib,eth", "fe80::1b");                       /* as ordered; there is no other address */
    expect("wlan,eth2,eth", "10.2.0.1");
    expect("wlan", "none");
    expect("lo", "127.0.0.1");                          /* it was asked for */
    expect(",", "none");
}
static void test_whole_names(void **state)
{
    (void)state;
    expect("=eth1", "none");
    expect("=eth", "none");
    expect("=eth1,eth2", "10.2.0.1");                   /* of all in the list */
    expect("eth1x,=eth2", "10.2.0.1");                  /* of one */
    expect("=lo", "127.0.0.1");
}
static void test_all_but_some(void **state)
{
    (void)state;
    expect("^docker", "10.10.0.1");
    expect("^docker,eth1", "10.2.0.1");
    expect("^docker,eth", "fe80::1b");
    expect("^=eth1,docker0", "10.10.0.1");
    expect("^docker,eth,ib", "none");                   /* never loopback */
}
static void test_nothing_is_said(void **state)
{
    (void)state;
    expect("", "172.17.0.1");
    assert_null(interface_choose(NULL, 0, ""));
    assert_null(interface_choose(NULL, 0, "eth"));
}

/* ---- of this machine ---- */
static void test_a_name_that_nobody_has_is_refused(void **state)
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
static void test_loopback_only_when_asked_for(void **state)
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
/* An address of this machine is reached by itself. */
static void test_the_way_to_the_store(void **state)
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
        cmocka_unit_test(test_names_or_how_they_begin),
        cmocka_unit_test(test_whole_names),
        cmocka_unit_test(test_all_but_some),
        cmocka_unit_test(test_nothing_is_said),
        cmocka_unit_test(test_a_name_that_nobody_has_is_refused),
        cmocka_unit_test(test_loopback_only_when_asked_for),
        cmocka_unit_test(test_the_way_to_the_store),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
