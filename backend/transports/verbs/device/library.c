/* Each function is looked up with its symbol version. The library has two versions of some, with different structures,
   and it is undocumented which of them dlsym returns. */
#include "backend/transports/verbs/device/library.h"
#include "backend/base/dynamic_library.h"
#include "backend/base/settings.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#define X(type, name, parameters, version) \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&name), type(*) parameters), "the type of the header");
VERBS_CALLS(X)
VERBS_OPTIONAL_CALLS(X)
#undef X
struct verbs_calls verbs;
static struct dynamic_library library;

/* Finds the functions of an opened library by their symbol versions, and stores its path. false: one is missing, which
   is recorded as the problem of the path. */
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
    if (!missing) {
        snprintf(library.name, sizeof library.name, "%.255s", path);
        return true;
    }
    snprintf(why, sizeof why, "it has no %s", missing);
    dynamic_library_record_problem(&library, path, why);
    return false;
}
static void library_load_once(void) { dynamic_library_open_first(&library, settings_get()->verbs, library_find_calls); }
tutti_status verbs_library_load(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, library_load_once);
    if (library.name[0]) return TUTTI_OK;
    return status_fail(TUTTI_UNSUPPORTED,
        "no libibverbs, which the transport verbs needs (%s): install it and the drivers of its devices (apt-get "
        "install libibverbs1 ibverbs-providers), or set TUTTI_VERBS to the path of libibverbs.so.1",
        library.problem[0] ? library.problem : "TUTTI_VERBS names none");
}
const char *verbs_library_name(void) { return library.name; }
