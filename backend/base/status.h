/* Errors are values. The function that detects an error calls status_fail once, with the cause; its callers return the
   status. */
#pragma once
#include "include/tutti.h"
#include <stdarg.h>

enum { STATUS_DETAIL_BYTES = 1024 };
/* Returns the status of `expression` from the calling function if that is an error. */
#define TRY(expression) do { tutti_status status_ = (expression); if (status_ < 0) return status_; } while (0)

/* Keeps the formatted text as this thread's last error, logs it at level info, and returns `status`. The attribute
   `cold` makes the compiler move the branches with such a call out of the hot path. */
tutti_status status_fail(tutti_status status, const char *format, ...) __attribute__((format(printf, 2, 3), cold));
/* Fails a call like status_fail, and marks the error as a refusal: the call has sent no message and left its object
   unchanged. Other errors count as failures of the object, so the function that refuses must use this one. */
tutti_status status_refuse(tutti_status status, const char *format, ...) __attribute__((format(printf, 2, 3), cold));
/* Marks this thread's last error as a refusal if `status` is an error. Returns `status`. */
tutti_status status_mark_refusal(tutti_status status);
/* Returns true if this thread's last error is a refusal. */
bool status_is_refusal(void);
/* These two set this thread's last error, or refusal, to a text that another thread or rank has logged, without logging
   it again. They return `status`. */
tutti_status status_repeat(tutti_status status, const char *detail) __attribute__((cold));
tutti_status status_repeat_refusal(tutti_status status, const char *detail) __attribute__((cold));
/* Returns the text of this thread's last error, which is never NULL. */
const char *status_detail(void);
/* Returns the meaning of a status in a few words, or "unknown status". */
const char *status_message(tutti_status status);
