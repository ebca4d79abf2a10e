/* Each function is looked up with its symbol version. The library has two versions of some, with different structures,
   and it is undocumented which of them dlsym returns. */
#include "backend/transports/verbs/device/library.h"
#include "backend/base/settings.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define X(type, name, parameters, version) \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&name), type(*) parameters), "as its header has it");
VERBS_CALLS(X)
VERBS_OPTIONAL_CALLS(X)
#undef X
struct verbs_calls verbs;
static struct {
    pthread_once_t once;
    tutti_status status;
    char name[256], problem[600];
} library = { .once = PTHREAD_ONCE_INIT };

static void library_record_problem(const char *path, const char *why)
{
    size_t used = strlen(library.problem);
    snprintf(library.problem + used, sizeof library.problem - used, "%s%.120s: %.200s", used ? "; " : "", path, why);
}
static bool library_find_calls(void *opened, const char *path)
{
    const char *missing = NULL;
    char why[96];
#define X(type, call, parameters, version) verbs.call = (type(*) parameters)dlvsym(opened, #call, version);
    VERBS_OPTIONAL_CALLS(X)
#undef X
#define X(type, call, parameters, version) \
    verbs.call = (type(*) parameters)dlvsym(opened, #call, version); \
    if (!verbs.call && !missing) missing = #call " of " version;
    VERBS_CALLS(X)
#undef X
    if (!missing) return true;
    snprintf(why, sizeof why, "it has no %s", missing);
    library_record_problem(path, why);
    return false;
}
static bool library_open_path(const char *path)
{
    void *opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!opened) {
        const char *why = dlerror();
        library_record_problem(path, why ? why : "it cannot be opened");
        return false;
    }
    if (!library_find_calls(opened, path)) return false;
    snprintf(library.name, sizeof library.name, "%.255s", path);
    return true;
}
static void library_load_once(void)
{
    char list[1024], *rest = NULL;
    bool opened = false;
    snprintf(list, sizeof list, "%s", settings_get()->verbs);
    for (char *path = strtok_r(list, ":", &rest); path && !opened; path = strtok_r(NULL, ":", &rest))
        opened = library_open_path(path);
    library.status = opened ? TUTTI_OK : TUTTI_UNSUPPORTED;
}
tutti_status verbs_library_load(void)
{
    pthread_once(&library.once, library_load_once);
    if (library.status == TUTTI_OK) return TUTTI_OK;
    return status_fail(library.status,
        "no libibverbs, which the transport verbs needs (%s): install it and the drivers of its devices (apt-get "
        "install libibverbs1 ibverbs-providers), or set TUTTI_VERBS to the path of libibverbs.so.1",
        library.problem[0] ? library.problem : "TUTTI_VERBS names none");
}
const char *verbs_library_name(void) { return library.name; }
