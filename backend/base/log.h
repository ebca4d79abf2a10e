/* One line per event on stderr: "tutti[pid] warn: …". Nothing is formatted unless the level is on (setting TUTTI_LOG).
   */
#pragma once

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };
extern int log_limit;                                                  /* the most talkative level that is printed */
#define LOG(level, ...) do { if (LOG_##level <= log_limit) log_write(LOG_##level, __VA_ARGS__); } while (0)

void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
int log_level_parse(const char *name);                                 /* -1: no such level */
