/* The detail of an error lives in the thread that saw it, so that no caller has to pass a buffer through. */
#include "backend/base/status.h"
#include "backend/base/log.h"
#include <stdio.h>
#include <string.h>

static _Thread_local char detail[STATUS_DETAIL_BYTES];

tutti_status status_fail(tutti_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(detail, sizeof detail, format, arguments);
    va_end(arguments);
    LOG(INFO, "%s: %s", status_message(status), detail);
    return status;
}
tutti_status status_repeat(tutti_status status, const char *text)
{
    snprintf(detail, sizeof detail, "%s", text);
    return status;
}
const char *status_detail(void) { return detail; }

const char *status_message(tutti_status status)
{
    switch (status) {
#define X(name, value, message) case TUTTI_##name: return message;
        TUTTI_STATUS_MAP(X)
#undef X
    }
    return "unknown status";
}
