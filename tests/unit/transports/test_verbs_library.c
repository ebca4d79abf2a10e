/* How libibverbs is found, and the errors if no library is usable. Each test runs in a process of its own, because a
   process opens the library only once. */
#include "backend/base/settings.h"
#include "backend/base/status.h"
#include "backend/transports/verbs/device/library.h"
#include "backend/transports/verbs/verbs.h"
#include "tests/support/unit.h"
#include <dlfcn.h>
#include <sys/wait.h>

enum { SECONDS = 600, SKIPPED = 77 };
static void in_a_process(void (*each)(void))
{
    int how;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(SECONDS);
        each();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    if (WIFEXITED(how) && WEXITSTATUS(how) == SKIPPED) skip();
    assert_int_equal(how, 0);
}
static void need(bool so, const char *what)
{
    if (so) return;
    fprintf(stderr, "not so: %s (%s)\n", what, status_detail());
    _exit(1);
}
static void set_path(const char *list)
{
    setenv("TUTTI_VERBS", list, 1);
    settings_reload();
}
static void need_the_library(void)
{
    if (dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL)) return;
    fprintf(stderr, "SKIPPED: there is no libibverbs.so.1 (%s)\n", dlerror());
    _exit(SKIPPED);
}

static void finds_none(void)
{
    char text[1024];
    set_path("/nowhere/libibverbs.so.1:/elsewhere/libibverbs.so.1");
    need(verbs_library_load() == TUTTI_UNSUPPORTED, "missing libraries are an error");
    need(strstr(status_detail(), "/nowhere/libibverbs.so.1"), "the first is named");
    need(strstr(status_detail(), "/elsewhere/libibverbs.so.1"), "the second is named");
    need(strstr(status_detail(), "apt-get install libibverbs1 ibverbs-providers"), "the remedy is named");
    need(verbs_library_name()[0] == 0, "no library is in use");
    verbs_describe(text, sizeof text);
    need(strncmp(text, "no: ", 4) == 0 && strstr(text, "/nowhere"), "tutti info names it");
}
static void test_a_missing_library_is_reported_with_the_remedy(void **state)
{
    (void)state;
    in_a_process(finds_none);
}
static void finds_another_library(void)
{
    set_path("libm.so.6");
    need(verbs_library_load() == TUTTI_UNSUPPORTED, "a library without the calls is an error");
    need(strstr(status_detail(), "libm.so.6: it has no ibv_get_device_list of IBVERBS_1.1"), "a missing call is named");
}
static void test_a_library_without_the_calls_is_refused(void **state)
{
    (void)state;
    in_a_process(finds_another_library);
}
static void names_none(void)
{
    set_path("");
    need(verbs_library_load() == TUTTI_UNSUPPORTED, "an empty list is an error");
    need(strstr(status_detail(), "TUTTI_VERBS names none"), "the setting is named");
}
static void test_an_empty_list_is_reported(void **state)
{
    (void)state;
    in_a_process(names_none);
}
static void takes_the_second(void)
{
    need_the_library();
    set_path("/nowhere/libibverbs.so.1:libibverbs.so.1");
    need(verbs_library_load() == TUTTI_OK, "the second is opened");
    need(strcmp(verbs_library_name(), "libibverbs.so.1") == 0, "the second is in use");
    need(verbs_library_load() == TUTTI_OK, "a second load succeeds");
}
static void test_the_first_library_that_loads_is_used(void **state)
{
    (void)state;
    in_a_process(takes_the_second);
}
/* Each call has the version that the header declares. It is the library's default if the library has several. */
static void has_the_right_versions(void)
{
    need_the_library();
    need(verbs_library_load() == TUTTI_OK, "it is opened");
    void *opened = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
#define X(type, name, parameters, version) \
    need((void *)(uintptr_t)verbs.name == dlsym(opened, #name), #name " is the one that programs are linked with");
    VERBS_CALLS(X)
    VERBS_OPTIONAL_CALLS(X)
#undef X
    struct ibv_device *device = NULL;
    int count = -1;
    /* NULL if the kernel has no RDMA support. */
    struct ibv_device **list = verbs.ibv_get_device_list(&count);
    if (list) device = list[0];
    need(count > 0 ? device != NULL : device == NULL, "it can be called");
    if (list) verbs.ibv_free_device_list(list);
    need(strcmp(verbs.ibv_wc_status_str(IBV_WC_SUCCESS), "success") == 0, "it has a text for a status");
}
static void test_calls_have_the_versions_of_the_header(void **state)
{
    (void)state;
    in_a_process(has_the_right_versions);
}
unit_function test_verbs_library;
int test_verbs_library(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_missing_library_is_reported_with_the_remedy),
        cmocka_unit_test(test_a_library_without_the_calls_is_refused),
        cmocka_unit_test(test_an_empty_list_is_reported),
        cmocka_unit_test(test_the_first_library_that_loads_is_used),
        cmocka_unit_test(test_calls_have_the_versions_of_the_header),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
