/* Reads the one-line files in which the kernel describes devices. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* Reads the first line of a file without its newline into `out`. `format` and the arguments make the path of the file.
   false: the file is unreadable or empty, and `out` is an empty text. */
bool sysfs_read_line(char *out, size_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Returns the number at the beginning of the line, or `otherwise` if the line does not begin with an int. */
int sysfs_parse_number(const char *line, int otherwise);
/* Returns whether a list such as "0-3,8" contains the number. */
bool sysfs_list_contains(const char *list, int number);
