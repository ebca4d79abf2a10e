/* Each line is one write, so lines of several ranks on one terminal do not mix. */
#include "backend/base/log.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int log_limit = LOG_WARN;
static const char *const names[] = { "error", "warn", "info", "debug" };

void log_write(enum log_level level, const char *format, ...)
{
    char line[1400];
    int used = snprintf(line, sizeof line, "tutti[%d] %s: ", (int)getpid(), names[level]);
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, arguments);
    va_end(arguments);
    size_t length = strnlen(line, sizeof line - 2);
    if (more < 0) return;
    line[length++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, length);
    (void)ignored;
}
int log_level_parse(const char *name)
{
    for (int i = 0; i < 4; i++)
        if (strcmp(name, names[i]) == 0) return i;
    return -1;
}
