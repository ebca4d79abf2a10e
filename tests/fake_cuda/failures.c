/* Calls that fail because a test has ordered it, by a function or by FAKE_CUDA_FAIL:
     FAKE_CUDA_FAIL=cuIpcOpenMemHandle:3:CUDA_ERROR_MAP_FAILED,cuMemAlloc:1+:CUDA_ERROR_OUT_OF_MEMORY
   fails the third call of the first, and every call of the second. */
#include "tests/fake_cuda/calls.h"
#include "tests/fake_cuda/settings.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAILURES = 32 };
static struct failure {
    char call[64];
    unsigned left;
    bool always;
    CUresult result;
} failures[FAILURES];
static int failure_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_read;

static void failure_add(const char *call, unsigned n, bool always, CUresult result)
{
    if (failure_count == FAILURES || !n) abort();
    struct failure *failure = &failures[failure_count++];
    *failure = (struct failure){ .left = n, .always = always, .result = result };
    snprintf(failure->call, sizeof failure->call, "%s", call);
}
static bool result_parse(const char *name, CUresult *out)
{
    static const struct {
        const char *name;
        CUresult result;
    } results[] = {
#define ROW(name, number, text) { #name, name },
        CUDA_DRIVER_RESULTS(ROW) CUDA_GRAPH_RESULTS(ROW)
#undef ROW
    };
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        if (strcmp(results[i].name, name)) continue;
        *out = results[i].result;
        return true;
    }
    return false;
}
static bool failure_parse(const char *text)
{
    char call[64], number[16], name[64], *end;
    CUresult result;
    if (sscanf(text, "%63[^:]:%15[^:]:%63s", call, number, name) != 3 || !result_parse(name, &result)) return false;
    unsigned long n = strtoul(number, &end, 10);
    bool always = *end == '+';
    if (!n || end[always] || call_find(call, settings()->driver_version) < 0) return false;
    failure_add(call, (unsigned)n, always, result);
    return true;
}
/* The caller holds the lock. */
static void failures_read(void)
{
    char *copy = settings()->fail ? strdup(settings()->fail) : NULL, *rest = copy;
    is_read = true;
    for (char *text; rest && (text = strsep(&rest, ","));) {
        if (!*text || failure_parse(text)) continue;
        fprintf(stderr, "fake CUDA: FAKE_CUDA_FAIL: %s is not understood; it is CALL:N:RESULT or CALL:N+:RESULT\n",
            text);
        exit(2);
    }
    free(copy);
}
VISIBLE void fake_cuda_fail(const char *call, unsigned n, bool always, CUresult result)
{
    pthread_mutex_lock(&lock);
    failure_add(call, n, always, result);
    pthread_mutex_unlock(&lock);
}
/* Counts down all orders for a function; the first that is due gives the result. */
CUresult failure_due(enum call call)
{
    CUresult due = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    if (!is_read) failures_read();
    for (int i = 0; i < failure_count; i++) {
        struct failure *failure = &failures[i];
        if (!failure->left || strcmp(failure->call, call_name(call))) continue;
        bool is_due = failure->left == 1;
        if (is_due && !due) due = failure->result;
        if (!is_due || !failure->always) failure->left--;
    }
    pthread_mutex_unlock(&lock);
    return due;
}
