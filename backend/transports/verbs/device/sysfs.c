/* A file that has vanished or is empty counts as missing, because devices come and go. */
#include "backend/transports/verbs/device/sysfs.h"
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool sysfs_read_line(char *out, size_t bytes, const char *format, ...)
{
    char path[PATH_MAX];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(path, sizeof path, format, arguments);
    va_end(arguments);
    out[0] = 0;
    FILE *file = length > 0 && length < (int)sizeof path ? fopen(path, "re") : NULL;
    if (!file) return false;
    bool found = fgets(out, (int)bytes, file) != NULL;
    fclose(file);
    if (!found) out[0] = 0;
    out[strcspn(out, "\n")] = 0;
    return found;
}
int sysfs_parse_number(const char *line, int otherwise)
{
    char *end;
    long number = strtol(line, &end, 10);
    return end == line || number < INT_MIN || number > INT_MAX ? otherwise : (int)number;
}
bool sysfs_list_contains(const char *list, int number)
{
    while (*list) {
        char *end;
        long first = strtol(list, &end, 10), last = first;
        if (end == list) return false;
        if (*end == '-') last = strtol(end + 1, &end, 10);
        if (number >= first && number <= last) return true;
        list = *end == ',' ? end + 1 : "";
    }
    return false;
}
