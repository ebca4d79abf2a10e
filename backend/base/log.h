/* Writes one line per event to stderr, as in "tutti[pid] warn: …". A line is formatted only if its level is enabled
   (setting TUTTI_LOG). */
#pragma once

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };
/* Levels up to the limit are printed. */
extern int log_limit;
#define LOG(level, ...) do { if (LOG_##level <= log_limit) log_write(LOG_##level, __VA_ARGS__); } while (0)

void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Returns the level of this name, or -1. */
int log_level_parse(const char *name);
