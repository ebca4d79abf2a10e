/* The memory of building and keeping a plan grows in proportion to the hosts at most, for every algorithm between
   hosts, and by far less for algorithms in which a rank exchanges messages with few hosts. */
#include "backend/collectives/collectives.h"
#include "tests/support/unit.h"
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* A host of PER_HOST ranks among HOSTS hosts, and among twice as many. */
enum { HOSTS = 512, PER_HOST = 8, KIB = 1024, SLACK_KIB = 1024 };
/* The largest growth of the resident set while a plan was built, and the kept bytes, both in KiB. */
struct memory { double building, kept; };

static struct layout *layout_of_blocks(int hosts)
{
    int *host = calloc((size_t)hosts * PER_HOST, sizeof *host);
    struct layout *layout;
    assert_non_null(host);
    for (int r = 0; r < hosts * PER_HOST; r++) host[r] = r / PER_HOST;
    assert_int_equal(layout_create(host, hosts * PER_HOST, &layout), TUTTI_OK);
    free(host);
    return layout;
}
static double resident_most_kib(void)
{
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    return (double)usage.ru_maxrss;
}
static void build_plan(const struct algorithm *algorithm, int hosts, struct memory *out)
{
    struct plan plan = { .algorithm = algorithm,
        .layout = layout_of_blocks(hosts),
        .one_host = true,
        .host = hosts / 3,
        .slots = 4,
        .hoists_receives = true,
        .one_rank = true,
        .rank = hosts / 3 * PER_HOST };
    double before = resident_most_kib();
    assert_int_equal(plan_build_staging(&plan), TUTTI_OK);
    *out = (struct memory){ resident_most_kib() - before, (double)plan_held_bytes(&plan) / KIB };
}
/* Builds the plan in a process of its own, because a process does not forget its largest resident set. */
static struct memory memory_of_plan(const struct algorithm *algorithm, int hosts)
{
    struct memory *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct memory found;
    assert_true(shared != MAP_FAILED);
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        build_plan(algorithm, hosts, shared);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    found = *shared;
    munmap(shared, sizeof *shared);
    return found;
}
static void test_memory_of_plans_grows_in_proportion_to_the_hosts(void **state)
{
    (void)state;
    for (const struct algorithm *a = collectives_table; a->name; a++) {
        if (!a->hierarchical) continue;
        struct memory one = memory_of_plan(a, HOSTS), two = memory_of_plan(a, 2 * HOSTS);
        if (two.building > 2.2 * one.building + SLACK_KIB || two.kept > 2.2 * one.kept + 1)
            fail_msg("%s %s: from %d to %d hosts building takes %.0f and %.0f KiB, and the plan %.1f and %.1f KiB",
                collective_name(a->collective), a->name, HOSTS, 2 * HOSTS, one.building, two.building, one.kept,
                two.kept);
    }
}
unit_function test_plan_growth;
int test_plan_growth(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_of_plans_grows_in_proportion_to_the_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
