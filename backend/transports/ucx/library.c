/* UCX changes its process while it is loaded, in the constructors of its libraries, and only environment variables
   prevent that. So tutti sets the variables below before it opens UCX, where the user has not set them;
   docs/decisions/ucx.md has the measurements behind them. setenv is unsafe while other threads read the environment, so
   it happens once. */
#include "backend/transports/ucx/library.h"
#include "backend/base/dynamic_library.h"
#include "backend/base/log.h"
#include "backend/base/settings.h"
#include "backend/links/ports.h"
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_MINOR = 13, UCX_ERROR = 1, UCX_WARN = 2 };
#define X(type, name, parameters) \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&name), type(*) parameters), "the type of UCX's header");
UCX_CALLS(X)
#undef X
struct ucx_calls ucx;
static struct dynamic_library library;
static const char *(*status_string)(ucs_status_t);

bool ucx_has_rdma(void)
{
    DIR *devices = opendir("/sys/class/infiniband");
    if (!devices) return false;
    int entries = 0;
    /* Two of the entries are "." and "..". */
    while (entries < 3 && readdir(devices)) entries++;
    closedir(devices);
    return entries == 3;
}
/* Sets those of UCX's environment variables that the user has not set: no signal handlers, fast detection of dead
   peers. */
static void ucx_set_environment_defaults(void)
{
    static const char *const defaults[][2] = { { "UCX_ERROR_SIGNALS", "" }, { "UCX_DEBUG_SIGNO", "" },
        { "UCX_HANDLE_ERRORS", "none" }, { "UCX_TCP_TX_SEG_SIZE", "256K" }, { "UCX_TCP_RX_SEG_SIZE", "256K" },
        { "UCX_TCP_KEEPIDLE", "2s" }, { "UCX_TCP_KEEPINTVL", "1s" }, { "UCX_TCP_KEEPCNT", "3" },
        { "UCX_TCP_CONN_NB", "y" }, { "UCX_KEEPALIVE_INTERVAL", "inf" }, { "UCX_WARN_UNUSED_ENV_VARS", "n" } };
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++) setenv(defaults[i][0], defaults[i][1], 0);
    struct port_range range;
    /* The range has the same form in UCX. Without it UCX takes any port. */
    if (port_range_parse(settings_get()->ports, &range) && range.first)
        setenv("UCX_TCP_PORT_RANGE", settings_get()->ports, 0);
    /* Only UCX's caches of registered memory need memory events, and TCP has no such cache. */
    if (!ucx_has_rdma()) setenv("UCX_MEM_EVENTS", "n", 0);
}

/* ---- its log ---- */
/* Passes a line of UCX's log to tutti's log. UCX calls it for each line. */
__attribute__((format(printf, 6, 0))) static int ucx_handle_log_line(const char *file, unsigned line,
    const char *function, int level, const void *component, const char *format, va_list arguments)
{
    char text[600];
    (void)component;
    vsnprintf(text, sizeof text, format, arguments);
    const char *name = strrchr(file, '/');
    name = name ? name + 1 : file;
    if (level <= UCX_ERROR) LOG(INFO, "UCX: %s (%s:%u %s)", text, name, line, function);
    else if (level == UCX_WARN) LOG(INFO, "UCX: %s (%s:%u %s)", text, name, line, function);
    else LOG(DEBUG, "UCX: %s (%s:%u %s)", text, name, line, function);
    /* 0 keeps the line from UCX's other log handlers. */
    return 0;
}
typedef int log_handler(const char *, unsigned, const char *, int, const void *, const char *, va_list);
/* Makes UCX log by ucx_handle_log_line, and finds ucs_status_string, if the opened library has these functions. */
static void ucx_redirect_log(void)
{
    void *common = dlopen("libucs.so.0", RTLD_NOW | RTLD_NOLOAD);
    if (!common) return;
    void (*push)(log_handler *) = (void (*)(log_handler *))dlsym(common, "ucs_log_push_handler");
    status_string = (const char *(*)(ucs_status_t))dlsym(common, "ucs_status_string");
    if (push) push(ucx_handle_log_line);
}

/* ---- opening the library ---- */
/* Finds all functions of UCX in an opened library. `path` is that of the library, for errors. false: a function is
   missing. */
static bool library_find_calls(void *opened, const char *path)
{
    const char *missing = NULL;
#define X(type, name, parameters) \
    ucx.name = (type(*) parameters)dlsym(opened, #name); \
    if (!ucx.name) missing = #name;
    UCX_CALLS(X)
#undef X
    if (missing) dynamic_library_record_problem(&library, path, missing);
    return !missing;
}
/* Returns whether an opened library has all functions and a version of at least 1.LEAST_MINOR. */
static bool library_accept(void *opened, const char *path)
{
    unsigned major = 0, minor = 0, release = 0;
    char text[64];
    if (!library_find_calls(opened, path)) return false;
    ucx.ucp_get_version(&major, &minor, &release);
    if (major != 1 || minor < LEAST_MINOR) {
        snprintf(text, sizeof text, "it is version %u.%u.%u", major, minor, release);
        dynamic_library_record_problem(&library, path, text);
        return false;
    }
    snprintf(library.name, sizeof library.name, "%u.%u.%u (%.200s)", major, minor, release, path);
    return true;
}
/* Opens the first usable library of the paths in settings_get()->ucx. */
static void library_load_once(void)
{
    ucx_set_environment_defaults();
    if (dynamic_library_open_first(&library, settings_get()->ucx, library_accept)) ucx_redirect_log();
}
tutti_status ucx_library_load(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, library_load_once);
    if (library.name[0]) return TUTTI_OK;
    return status_fail(TUTTI_UNSUPPORTED,
        "no UCX of version 1.%d or later (%s): install it (apt-get install libucx0), set TUTTI_UCX to the path of "
        "libucp.so.0, or set TUTTI_TRANSPORT=tcp on all ranks",
        LEAST_MINOR, library.problem[0] ? library.problem : "TUTTI_UCX names none");
}
const char *ucx_library_name(void) { return library.name; }
const char *ucx_status_text(ucs_status_t status) { return status_string ? status_string(status) : "an error of UCX"; }
