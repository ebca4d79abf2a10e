/* Every unit test includes this header: it has cmocka, the headers that cmocka needs before it, and those of libc that
   most tests use.
   A test file exports one function, which has the name of the file. The program of a folder has the tests of several
   files, and runs those of one: `unit_engine test_queue`. So each file has a process to itself. */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

/* Runs the tests of a file. Returns the exit code of the process: 0 if all succeeded, 77 if the file was skipped. */
typedef int unit_function(void);
struct unit_file { const char *name; unit_function *run; };
/* The files of this program, in a table that CMake writes; the last has no name. */
extern const struct unit_file unit_files[];
/* The words of the command line from the name of the file on: what main gets in a program of one file. */
extern struct unit_arguments {
    int count;
    char **words;
} unit_arguments;
