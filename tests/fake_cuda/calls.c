/* The driver's visible functions. Each enters here, and runs the function of the same name with the prefix fake_. */
#include "tests/fake_cuda/calls.h"
#include "tests/fake_cuda/capture.h"
#include "tests/fake_cuda/settings.h"
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define DEFINE(name, symbol, version, parameters, arguments) \
    VISIBLE CUresult symbol parameters \
    { \
        CUresult result = call_enter(CALL_##symbol); \
        return result ? result : fake_##symbol arguments; \
    }
FAKE_CUDA_FUNCTIONS(DEFINE)
#undef DEFINE

static const struct {
    const char *name;
    int version;
    void *function;
} calls[] = {
#define ROW(name, symbol, version, parameters, arguments) { #name, version, (void *)symbol },
    FAKE_CUDA_FUNCTIONS(ROW)
#undef ROW
};
static atomic_ullong counts[CALLS];
static atomic_int used_by, initialized_by;
static _Thread_local bool is_forbidden;

const char *call_name(enum call call) { return calls[call].name; }
int call_find(const char *name, int version)
{
    int found = -1;
    for (int i = 0; i < CALLS; i++) {
        if (strcmp(calls[i].name, name) || calls[i].version > settings()->driver_version) continue;
        if (calls[i].version <= version && (found < 0 || calls[i].version > calls[found].version)) found = i;
        if (found == -1) found = -2;
    }
    return found;
}
VISIBLE uint64_t fake_cuda_count(const char *call)
{
    uint64_t sum = 0;
    for (int i = 0; i < CALLS; i++)
        if (!call || strcmp(calls[i].name, call) == 0) sum += atomic_load(&counts[i]);
    return sum;
}
void thread_forbid_calls(bool forbid) { is_forbidden = forbid; }

/* These need no cuInit. */
static bool call_is_free(enum call call)
{
    return call == CALL_cuInit || call == CALL_cuDriverGetVersion || call == CALL_cuGetErrorName
        || call == CALL_cuGetErrorString || call == CALL_cuGetProcAddress_v2;
}
CUresult call_enter(enum call call)
{
    atomic_fetch_add(&counts[call], 1);
    if (!atomic_load(&initialized_by) && atomic_exchange(&used_by, getpid()) != getpid()) settings_read();
    if (is_forbidden) return CUDA_ERROR_NOT_PERMITTED;
    if (!call_is_free(call) && atomic_load(&initialized_by) != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
    CUresult refused = capture_error(call);
    return refused ? refused : failure_due(call);
}

/* A child of a process that has used the driver cannot use it. */
CUresult fake_cuInit(unsigned flags)
{
    int before = atomic_load(&initialized_by), self = getpid();
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (before && before != self) return CUDA_ERROR_NOT_INITIALIZED;
    if (!settings()->devices) return CUDA_ERROR_NO_DEVICE;
    atomic_store(&initialized_by, self);
    return CUDA_SUCCESS;
}
CUresult fake_cuDriverGetVersion(int *out)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = settings()->driver_version;
    return CUDA_SUCCESS;
}
CUresult fake_cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags,
    CUdriverProcAddressQueryResult *status)
{
    static const CUdriverProcAddressQueryResult statuses[] = { CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT,
        CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, CU_GET_PROC_ADDRESS_SUCCESS };
    if (!name || !out || version > settings()->driver_version || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    int found = call_find(name, version);
    *out = found < 0 ? NULL : calls[found].function;
    if (status) *status = statuses[found < 0 ? found + 2 : 2];
    return CUDA_SUCCESS;
}

static const struct {
    CUresult result;
    const char *name, *text;
} results[] = {
#define ROW(name, number, text) { name, #name, text },
    CUDA_DRIVER_RESULTS(ROW) CUDA_GRAPH_RESULTS(ROW)
#undef ROW
};
static int result_find(CUresult result)
{
    int count = sizeof results / sizeof *results, i = 0;
    while (i < count && results[i].result != result) i++;
    return i < count ? i : -1;
}
CUresult fake_cuGetErrorName(CUresult result, const char **out)
{
    int found = result_find(result);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = found < 0 ? NULL : results[found].name;
    return found < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult fake_cuGetErrorString(CUresult result, const char **out)
{
    int found = result_find(result);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = found < 0 ? NULL : results[found].text;
    return found < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
