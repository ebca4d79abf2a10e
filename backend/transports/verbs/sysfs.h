/* What the kernel says of devices in files of one line. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* The first line of a file without its end; false, and an empty text: there is none. */
bool sysfs_line(char *out, size_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));
int sysfs_number(const char *line, int otherwise); /* what a line begins with */
bool sysfs_list_has(const char *list, int number); /* "0-3,8" has 2 */
