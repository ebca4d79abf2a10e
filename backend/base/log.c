/* Each line is one write, so lines of several ranks on one terminal do not mix. The log never waits, because the caller
   may hold a lock. If stderr is a full pipe, lines are dropped and counted, and the next line that fits reports the
   count. */
#include "backend/base/log.h"
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int log_limit = LOG_WARN;
static const char *const level_names[] = { "error", "warn", "info", "debug" };

static _Atomic unsigned dropped_lines;
/* Returns true if a write to stderr does not wait, or would fail at once. */
static bool stderr_has_room(void)
{
    struct pollfd one = { .fd = STDERR_FILENO, .events = POLLOUT };
    /* After an error of poll, write reports it. */
    return poll(&one, 1, 0) != 0;
}
void log_write(enum log_level level, const char *format, ...)
{
    char line[1400];
    if (!stderr_has_room()) {
        atomic_fetch_add(&dropped_lines, 1);
        return;
    }
    unsigned lost_lines = atomic_exchange(&dropped_lines, 0);
    int used = snprintf(line, sizeof line, "tutti[%d] %s: ", (int)getpid(), level_names[level]);
    if (lost_lines)
        used += snprintf(line + used, sizeof line - (size_t)used,
            "(%u earlier lines were lost: stderr did not accept them) ", lost_lines);
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, arguments);
    va_end(arguments);
    if (more < 0)
        snprintf(line + used, sizeof line - (size_t)used - 1, "a text with the format \"%s\" cannot be formatted",
            format);
    size_t length = strnlen(line, sizeof line - 2);
    line[length++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, length);
    (void)ignored;
}
int log_level_parse(const char *name)
{
    for (int i = 0; i < 4; i++)
        if (strcmp(name, level_names[i]) == 0) return i;
    return -1;
}
