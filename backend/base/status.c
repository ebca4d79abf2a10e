/* The text of an error is local to the thread that detected it, so callers need not pass a buffer. */
#include "backend/base/status.h"
#include "backend/base/log.h"
#include "backend/base/text.h"
#include <stdio.h>
#include <string.h>

/* The text of this thread's last error, and whether that error is a refusal. */
static _Thread_local char detail[STATUS_DETAIL_BYTES];
static _Thread_local bool is_refusal;

/* Formats the text of this thread's last error, logs it, and returns `status`. */
__attribute__((format(printf, 3, 0))) static tutti_status status_keep_text(tutti_status status, bool refuses,
    const char *format, va_list arguments)
{
    vsnprintf(detail, sizeof detail, format, arguments);
    text_replace_invalid(detail);
    is_refusal = refuses;
    LOG(INFO, "%s: %s", status_message(status), detail);
    return status;
}
tutti_status status_fail(tutti_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    status_keep_text(status, false, format, arguments);
    va_end(arguments);
    return status;
}
tutti_status status_refuse(tutti_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    status_keep_text(status, true, format, arguments);
    va_end(arguments);
    return status;
}
tutti_status status_mark_refusal(tutti_status status)
{
    if (status < 0) is_refusal = true;
    return status;
}
tutti_status status_repeat(tutti_status status, const char *text)
{
    snprintf(detail, sizeof detail, "%s", text);
    is_refusal = false;
    return status;
}
tutti_status status_repeat_refusal(tutti_status status, const char *text)
{
    status_repeat(status, text);
    return status_mark_refusal(status);
}
bool status_is_refusal(void) { return is_refusal; }
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
