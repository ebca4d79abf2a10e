/* Opens the first usable one of several shared libraries, and records why those before it are not usable. */
#pragma once
#include <stdbool.h>

struct dynamic_library {
    /* The accepted library, as accept() names it. It is empty until a library is accepted. */
    char name[256];
    /* The paths that were rejected, each with its reason. */
    char problem[600];
    bool was_opened;
};
/* Calls open(paths) in the first call for this library. A call on another thread waits for it, and later calls do
   nothing. */
void dynamic_library_open_once(struct dynamic_library *library, void (*open)(const char *paths), const char *paths);
/* Opens the paths of a list, separated by colons, until accept() returns true for the handle of one. accept() sets the
   name, or records a problem and returns false. Returns true if a library was accepted. */
bool dynamic_library_open_first(struct dynamic_library *library, const char *paths,
    bool (*accept)(void *opened, const char *path));
/* Opens one path, which may have colons, in the same way. */
bool dynamic_library_open_one(struct dynamic_library *library, const char *path,
    bool (*accept)(void *opened, const char *path));
/* Appends a rejected path and the reason to library->problem. */
void dynamic_library_record_problem(struct dynamic_library *library, const char *path, const char *why);
