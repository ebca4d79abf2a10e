/* TCP while the system refuses what it needs: a connection of the process with itself that cannot open leaves neither a
   socket nor an open end, and a listener without descriptors logs once until it has accepted all callers. The test has
   no thread of the fabric, and makes progress itself. */
#include "backend/base/status.h"
#include "backend/transports/tcp/sockets.h"
#include "backend/transports/tcp/tcp.h"
#include "tests/support/said.h"
#include "tests/support/unit.h"
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static struct fabric fabric = FABRIC(&tcp_operations);
static struct key_id key;

/* ---- shortages ---- */
/* How many more sockets epoll watches; -1: any number. */
static int watches_left = -1;
/* Replaces the function of libc. */
int epoll_ctl(int poller, int how, int descriptor, struct epoll_event *event)
{
    if (how == EPOLL_CTL_ADD && watches_left == 0) {
        errno = ENOSPC;
        return -1;
    }
    if (how == EPOLL_CTL_ADD && watches_left > 0) watches_left--;
    return (int)syscall(SYS_epoll_ctl, poller, how, descriptor, event);
}
static void run_without_descriptors(void (*call)(void))
{
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 0, before.rlim_max }), 0);
    call();
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

static int set_up(void **state)
{
    static const unsigned char drawn[KEY_BYTES] = "the key of a group";
    const struct fabric_environment place = { .simulated = true };
    (void)state;
    assert_int_equal(group_key_add(drawn, &key), TUTTI_OK);
    fabric.process[0] = 1;
    assert_int_equal(tcp_operations.start(&fabric, &place), TUTTI_OK);
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    tcp_operations.shutdown(&fabric);
    tcp_operations.finish(&fabric);
    return 0;
}
static int descriptors_count(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    assert_non_null(folder);
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

/* ---- a connection of the process with itself ---- */
static struct endpoint *itself;
static tutti_status status;
static void connect_to_itself(void)
{
    itself = NULL;
    status = tcp_operations.connect(&fabric, fabric.process, &key, fabric.address, fabric.address_bytes, &itself);
}
static void assert_nothing_is_left(int descriptors)
{
    for (struct endpoint *e = fabric.endpoints; e; e = e->next) assert_true(endpoint_is_broken(e));
    assert_int_equal(tcp_sockets_of(&fabric)->open_count, 0);
    assert_int_equal(descriptors_count(), descriptors);
    tcp_endpoints_free(&fabric);
}
static void assert_refused(const char *why, int descriptors)
{
    assert_int_equal(status, TUTTI_SYSTEM);
    assert_null(itself);
    assert_non_null(strstr(status_detail(), why));
    assert_nothing_is_left(descriptors);
}
static void test_a_connection_with_itself_fails_if_epoll_refuses_an_end(void **state)
{
    int before = descriptors_count();
    (void)state;
    for (int ends = 0; ends < 2; ends++) {
        watches_left = ends;
        connect_to_itself();
        watches_left = -1;
        assert_refused("epoll cannot watch a socket: No space left on device", before);
    }
}
static void test_a_connection_with_itself_fails_without_descriptors(void **state)
{
    int before = descriptors_count();
    (void)state;
    run_without_descriptors(connect_to_itself);
    assert_refused("cannot create a pair of sockets: Too many open files", before);
}
static void test_a_connection_with_itself_opens(void **state)
{
    int before = descriptors_count();
    (void)state;
    connect_to_itself();
    assert_int_equal(status, TUTTI_OK);
    assert_true(itself->is_open && !endpoint_is_broken(itself));
    assert_int_equal(tcp_sockets_of(&fabric)->open_count, 2);
    tcp_operations.disconnect(&fabric, itself);
    assert_nothing_is_left(before);
}

/* ---- callers ---- */
static int listener_call(void)
{
    struct tcp_address address;
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(&address, fabric.address, sizeof address);
    struct sockaddr_in name = { .sin_family = AF_INET, .sin_port = htons(address.port) };
    memcpy(&name.sin_addr, address.address, sizeof name.sin_addr);
    assert_int_equal(connect(s, (struct sockaddr *)&name, sizeof name), 0);
    return s;
}
/* Lets the fabric retry accept ten times at once, as often as it does in a second. */
static void accept_for_a_second(void)
{
    for (int i = 0; i < 10; i++) {
        if (tcp_sockets_of(&fabric)->accept_retry_ms) tcp_sockets_of(&fabric)->accept_retry_ms = 1;
        while (!tcp_operations.arm(&fabric)) {}
    }
}
static void accept_without_descriptors(void) { run_without_descriptors(accept_for_a_second); }
static int lines_with(const char *text, const char *part)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at++) count++;
    return count;
}
static void test_a_shortage_of_descriptors_is_logged_once(void **state)
{
    static const char line[] = "tcp cannot accept a connection: Too many open files";
    (void)state;
    for (int episode = 0; episode < 2; episode++) {
        int s = listener_call();
        assert_int_equal(lines_with(said_by(accept_without_descriptors), line), 1);
        assert_int_equal(tcp_sockets_of(&fabric)->pending_count, 0);
        assert_int_equal(lines_with(said_by(accept_for_a_second), line), 0);
        assert_int_equal(tcp_sockets_of(&fabric)->pending_count, 1);
        pending_connections_close(&fabric);
        close(s);
        /* The next episode begins a second later. */
        tcp_sockets_of(&fabric)->accept_failed_ms -= 1000;
    }
}
/* accept fails twice, a second apart, without a success in between. Both failures are logged. */
static void test_a_later_shortage_is_logged(void **state)
{
    (void)state;
    struct sockets *s = tcp_sockets_of(&fabric);
    for (int episode = 0; episode < 2; episode++) {
        int caller = listener_call();
        assert_int_equal(lines_with(said_by(accept_without_descriptors), "cannot accept a connection"), 1);
        close(caller);
        s->accept_failed_ms -= 1000;
    }
    accept_for_a_second();
    pending_connections_close(&fabric);
}
static void accept_until_the_listener_pauses(void)
{
    while (!tcp_sockets_of(&fabric)->accept_retry_ms) tcp_operations.arm(&fabric);
}
/* epoll refuses to watch the listener once. The next attempt watches it. */
static void test_the_listener_is_watched_again(void **state)
{
    (void)state;
    int caller = listener_call();
    run_without_descriptors(accept_until_the_listener_pauses);
    watches_left = 0;
    accept_for_a_second();
    assert_int_equal(tcp_sockets_of(&fabric)->pending_count, 0);
    watches_left = -1;
    accept_for_a_second();
    assert_int_equal(tcp_sockets_of(&fabric)->pending_count, 1);
    pending_connections_close(&fabric);
    close(caller);
}
unit_function test_tcp_shortage;
int test_tcp_shortage(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_connection_with_itself_fails_if_epoll_refuses_an_end),
        cmocka_unit_test(test_a_connection_with_itself_fails_without_descriptors),
        cmocka_unit_test(test_a_connection_with_itself_opens),
        cmocka_unit_test(test_a_shortage_of_descriptors_is_logged_once),
        cmocka_unit_test(test_a_later_shortage_is_logged),
        cmocka_unit_test(test_the_listener_is_watched_again),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
