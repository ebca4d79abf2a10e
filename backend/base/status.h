/* Errors as values. The function that first decides what the error is calls status_fail once, with the cause; callers
   only return it. */
#pragma once
#include "include/tutti.h"
#include <stdarg.h>

enum { STATUS_DETAIL_BYTES = 1024 };
#define TRY(expression) do { tutti_status status_ = (expression); if (status_ < 0) return status_; } while (0)

/* Errors are rare, which tells the compiler to keep what leads to them out of the way.
   Keeps the formatted text as this thread's last error, logs it at level info, and returns `status`. */
tutti_status status_fail(tutti_status status, const char *format, ...) __attribute__((format(printf, 2, 3), cold));
/* The same, for an error that concerns a call alone: nothing was sent, and what it was called on is as it was. Whatever
   else fails is taken for more than that, so whoever knows must say. */
tutti_status status_refuse(tutti_status status, const char *format, ...) __attribute__((format(printf, 2, 3), cold));
tutti_status status_as_refusal(tutti_status status);                   /* this thread's last error, if it is one */
bool status_is_refusal(void);                                          /* of this thread's last error */
/* The same without logging: for a text that somebody else has decided and logged. */
tutti_status status_repeat(tutti_status status, const char *detail) __attribute__((cold));
tutti_status status_repeat_refusal(tutti_status status, const char *detail) __attribute__((cold));
const char *status_detail(void);                                       /* this thread's last error; never NULL */
const char *status_message(tutti_status status);
