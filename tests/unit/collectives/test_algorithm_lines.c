/* Algorithms stay short: every function of backend/collectives has at most 40 lines, from its name to its closing
 * brace. Prints the lines of each algorithm. */
#include "backend/collectives/table.h"
#include "tests/support/unit.h"
#include <dirent.h>

enum { MOST_LINES = 40, MOST_FUNCTIONS = 400, NAME_BYTES = 64, LINE_BYTES = 512 };
static struct function {
    char name[NAME_BYTES];
    int lines;
} functions[MOST_FUNCTIONS];
static int function_count;

/* True if the line begins a function's definition, which is at the left margin and no declaration. */
static bool begins_function(const char *line)
{
    static const char *const not[] = { "typedef", "enum {", "static const" };
    for (size_t i = 0; i < sizeof not / sizeof *not; i++)
        if (strncmp(line, not[i], strlen(not[i])) == 0) return false;
    return strchr("#/}{ \n*", line[0]) == NULL && strchr(line, '(') && !strstr(line, ");\n");
}
static void name_of(const char *line, char *out)
{
    size_t end = strcspn(line, "("), begin = end;
    while (begin > 0 && line[begin - 1] != ' ' && line[begin - 1] != '*') begin--;
    snprintf(out, NAME_BYTES, "%.*s", (int)(end - begin), line + begin);
}
static void read_functions(FILE *file)
{
    char line[LINE_BYTES];
    struct function *f = NULL;
    while (fgets(line, sizeof line, file)) {
        if (!f && begins_function(line)) {
            assert_true(function_count < MOST_FUNCTIONS);
            f = &functions[function_count++];
            *f = (struct function){ .lines = 0 };
            name_of(line, f->name);
        }
        if (f) f->lines++;
        if (f && (line[0] == '}' || (f->lines == 1 && strstr(line, "}\n")))) f = NULL;
    }
    assert_null(f);
}
static int read_folder(void **state)
{
    (void)state;
    DIR *folder = opendir(COLLECTIVES_FOLDER);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char path[1024];
        size_t length = strlen(entry->d_name);
        if (length < 2 || strcmp(entry->d_name + length - 2, ".c") != 0) continue;
        snprintf(path, sizeof path, "%s/%s", COLLECTIVES_FOLDER, entry->d_name);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        read_functions(file);
        fclose(file);
    }
    closedir(folder);
    return 0;
}
static int lines_of(const char *name)
{
    for (int i = 0; i < function_count; i++)
        if (strcmp(functions[i].name, name) == 0) return functions[i].lines;
    return -1;
}
static void test_functions_have_at_most_40_lines(void **state)
{
    (void)state;
    for (int i = 0; i < function_count; i++)
        if (functions[i].lines > MOST_LINES) fail_msg("%s has %d lines", functions[i].name, functions[i].lines);
}
static void test_every_algorithm_has_a_definition(void **state)
{
    (void)state;
    char team[NAME_BYTES];
#define X(collective, label, function, flags) \
    snprintf(team, sizeof team, "team_%s", #function);                                                               \
    if (lines_of(#function) < 0) fail_msg("%s has no definition", #function);                                        \
    printf("%3d lines  %s\n", lines_of(lines_of(team) > 0 ? team : #function), #function);
    COLLECTIVES_TABLE(X)
#undef X
}

unit_function test_algorithm_lines;
int test_algorithm_lines(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_functions_have_at_most_40_lines),
        cmocka_unit_test(test_every_algorithm_has_a_definition),
    };
    return cmocka_run_group_tests(tests, read_folder, NULL);
}
