/* Runs the tests of the file that the first argument names; a program of one file needs no name. */
#include "tests/support/unit.h"

struct unit_arguments unit_arguments;

static int run_file(const struct unit_file *file, int count, char **words)
{
    unit_arguments = (struct unit_arguments){ count, words };
    return file->run();
}
int main(int count, char **words)
{
    if (!unit_files[1].name) return run_file(unit_files, count, words);
    for (const struct unit_file *file = unit_files; file->name && count > 1; file++)
        if (strcmp(file->name, words[1]) == 0) return run_file(file, count - 1, words + 1);
    fprintf(stderr, "usage: %s FILE [ARGUMENTS], where FILE is one of\n", words[0]);
    for (const struct unit_file *file = unit_files; file->name; file++) fprintf(stderr, "  %s\n", file->name);
    return 2;
}
