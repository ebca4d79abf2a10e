/* A rejected library stays open: what its constructors have changed in the process would stay anyway. */
#include "backend/base/dynamic_library.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

void dynamic_library_record_problem(struct dynamic_library *library, const char *path, const char *why)
{
    size_t used = strlen(library->problem);
    snprintf(library->problem + used, sizeof library->problem - used, "%s%.120s: %.200s", used ? "; " : "", path, why);
}
/* Opens a shared library and returns its handle. If it cannot be opened, records the reason and returns NULL. */
static void *library_open_path(struct dynamic_library *library, const char *path)
{
    void *opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (opened) return opened;
    const char *why = dlerror();
    dynamic_library_record_problem(library, path, why ? why : "it cannot be opened");
    return NULL;
}
void dynamic_library_open_once(struct dynamic_library *library, void (*open)(const char *paths), const char *paths)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (!library->was_opened) open(paths);
    library->was_opened = true;
    pthread_mutex_unlock(&lock);
}
bool dynamic_library_open_one(struct dynamic_library *library, const char *path,
    bool (*accept)(void *opened, const char *path))
{
    void *opened = library_open_path(library, path);
    return opened && accept(opened, path);
}
bool dynamic_library_open_first(struct dynamic_library *library, const char *paths,
    bool (*accept)(void *opened, const char *path))
{
    char list[1024], *rest = NULL;
    snprintf(list, sizeof list, "%s", paths);
    for (char *path = strtok_r(list, ":", &rest); path; path = strtok_r(NULL, ":", &rest))
        if (dynamic_library_open_one(library, path, accept)) return true;
    return false;
}
