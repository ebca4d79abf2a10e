/* Writes one line per event to stderr, as in "tutti[pid] warn: …". A line is formatted only if its level is enabled
   (setting TUTTI_LOG). */
#pragma once

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };
/* Levels up to the limit are printed. */
extern int log_limit;
/* Writes a line if its level is enabled: LOG(WARN, "format", …). */
#define LOG(level, ...) do { if (LOG_##level <= log_limit) log_write(LOG_##level, __VA_ARGS__); } while (0)

/* Writes a line of any level without waiting; drops and counts the line if stderr is full. LOG checks the level. */
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Returns the enum log_level of "error", "warn", "info" or "debug", or -1 for any other name. */
int log_level_parse(const char *name);
