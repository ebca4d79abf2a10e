/* Finds and opens the library. OpenSSL must not clean up when the program exits, because threads of this process may
 * still use connections then. If the program has initialized OpenSSL before, OpenSSL still cleans up. */
#include "backend/links/openssl.h"
#include "backend/base/settings.h"
#include "backend/base/status.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

enum { NO_ATEXIT = 0x00080000 };
struct openssl_calls openssl;
/* The reason for which the library could not be opened, or empty. */
static char problem[400];

/* Records why the library `name` cannot be used. `why` may be NULL. */
static void openssl_record_problem(const char *name, const char *why)
{
    snprintf(problem, sizeof problem, "%.100s: %.250s", name, why ? why : "it cannot be opened");
}
/* Opens OpenSSL 3 and finds its functions. If that fails, records the reason in `problem`. */
static void openssl_open_library(void)
{
    const char *name = settings_get()->openssl, *missing = NULL;
    void *opened = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!opened) {
        openssl_record_problem(name, dlerror());
        return;
    }
#define X(type, name, parameters) \
    openssl.name = (type(*) parameters)dlsym(opened, #name); \
    if (!openssl.name) missing = #name " is missing in it";
    OPENSSL_CALLS(X)
#undef X
    if (missing) openssl_record_problem(name, missing);
    else if (openssl.OpenSSL_version_num() >> 28 < 3) openssl_record_problem(name, "it is older than version 3");
    else openssl.OPENSSL_init_crypto(NO_ATEXIT, NULL);
}
tutti_status openssl_load(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, openssl_open_library);
    if (!*problem) return TUTTI_OK;
    return status_fail(TUTTI_UNSUPPORTED,
        "TUTTI_ENCRYPTION=required needs OpenSSL 3 (%s); install it (Debian: libssl3), or name it in TUTTI_OPENSSL",
        problem);
}
