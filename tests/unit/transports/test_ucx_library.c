/* Opening UCX: what it leaves unchanged in the process, and the error if the library is missing. Each test runs in a
   process of its own, because a process opens the library only once. */
#include "backend/base/settings.h"
#include "backend/base/status.h"
#include "backend/transports/ucx/ucx.h"
#include "tests/support/unit.h"
#include "tests/unit/transports/ranks_fabric.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

static unsigned char address[FABRIC_ADDRESS_BYTES];
static size_t address_bytes;
static const unsigned char process[16] = { 1 };
static const struct fabric_environment place = { .device = "lo", .simulated = true };
static void in_a_process(void (*each)(void))
{
    int how;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(RANKS_SECONDS);
        each();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_int_equal(how, 0);
}
static void need(bool so, const char *what)
{
    if (so) return;
    fprintf(stderr, "not so: %s (%s)\n", what, status_detail());
    _exit(1);
}
static void open_it(void)
{
    need(fabric_open(&ucx_fabric, process, &place, address, &address_bytes) == TUTTI_OK, "UCX is opened");
}

static void signals_and_mmap(void)
{
    struct sigaction before[NSIG], now;
    unsigned char code[16];
    for (int i = 1; i < NSIG; i++) sigaction(i, NULL, &before[i]);
    memcpy(code, (const void *)(uintptr_t)mmap, sizeof code);
    open_it();
    for (int i = 1; i < NSIG; i++)
        need(sigaction(i, NULL, &now) != 0 || now.sa_handler == before[i].sa_handler, "handlers are as they were");
    need(memcmp(code, (const void *)(uintptr_t)mmap, sizeof code) == 0, "mmap is as it was");
    fabric_close(&ucx_fabric);
}
static void test_opening_ucx_keeps_signal_handlers_and_mmap(void **state)
{
    (void)state;
    in_a_process(signals_and_mmap);
}
static void keeps_what_is_set(void)
{
    setenv("UCX_TCP_KEEPIDLE", "7s", 1);
    open_it();
    need(strcmp(getenv("UCX_TCP_KEEPIDLE"), "7s") == 0, "what the user has set stays");
    fabric_close(&ucx_fabric);
}
static void test_settings_of_the_user_are_kept(void **state)
{
    (void)state;
    in_a_process(keeps_what_is_set);
}
static void finds_none(void)
{
    setenv("TUTTI_UCX", "/nowhere/libucp.so.0:/elsewhere/libucp.so.0", 1);
    settings_reload();
    need(fabric_open(&ucx_fabric, process, &place, address, &address_bytes) == TUTTI_UNSUPPORTED,
        "the missing library is an error");
    need(strstr(status_detail(), "/nowhere/libucp.so.0"), "the first is named");
    need(strstr(status_detail(), "/elsewhere/libucp.so.0"), "the second is named");
    need(strstr(status_detail(), "apt-get install libucx0"), "the remedy is named");
    char text[1024];
    ucx_describe(text, sizeof text);
    need(strncmp(text, "no: ", 4) == 0 && strstr(text, "/nowhere"), "tutti info names it");
}
static void test_a_missing_library_is_reported_with_the_remedy(void **state)
{
    (void)state;
    in_a_process(finds_none);
}
static void takes_the_second(void)
{
    setenv("TUTTI_UCX", "/nowhere/libucp.so.0:libucp.so.0", 1);
    settings_reload();
    open_it();
    fabric_close(&ucx_fabric);
}
static void test_the_first_library_that_loads_is_used(void **state)
{
    (void)state;
    in_a_process(takes_the_second);
}
/* A forked child can close the fabric that it has inherited, and open its own. */
static void forks(void)
{
    int how;
    open_it();
    pid_t child = fork();
    if (child == 0) {
        fabric_close(&ucx_fabric);
        open_it();
        fabric_close(&ucx_fabric);
        _exit(0);
    }
    need(waitpid(child, &how, 0) == child && how == 0, "the child ended well");
    open_it();
    fabric_close(&ucx_fabric);
    fabric_close(&ucx_fabric);
    /* The last close has stopped the fabric, so this one starts it again. */
    open_it();
    fabric_close(&ucx_fabric);
}
static void test_a_forked_child_can_open_ucx(void **state)
{
    (void)state;
    in_a_process(forks);
}
unit_function test_ucx_library;
int test_ucx_library(void)
{
    if (!fabric_is_there("UCX", ucx_describe)) return SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_missing_library_is_reported_with_the_remedy),
        cmocka_unit_test(test_opening_ucx_keeps_signal_handlers_and_mmap),
        cmocka_unit_test(test_settings_of_the_user_are_kept),
        cmocka_unit_test(test_the_first_library_that_loads_is_used),
        cmocka_unit_test(test_a_forked_child_can_open_ucx),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
