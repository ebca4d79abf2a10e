/* Facts that the system reports about the machine, without measurements. Facts that it does not report are absent. */
#include "backend/model/machine.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

static const char cpus[] = "/sys/devices/system/cpu";
enum { MOST_CACHES = 16 };

/* Reads the first line of a file, without its end. False: the file is missing or empty. */
static bool file_read_first_line(const char *path, char *out, int bytes)
{
    FILE *file = fopen(path, "re");
    bool read = file && fgets(out, bytes, file);
    if (file) fclose(file);
    if (read) out[strcspn(out, "\n")] = 0;
    return read;
}
/* Reads an attribute ("level", "type", "size") of cache number `index` of the first core. False: the system does not
   report it. */
static bool cache_read_attribute(int index, const char *attribute, char *out, int bytes)
{
    char path[128];
    snprintf(path, sizeof path, "%s/cpu0/cache/index%d/%s", cpus, index, attribute);
    return file_read_first_line(path, out, bytes);
}
double cache_level_bytes(int level)
{
    char text[32];
    for (int i = 0; i < MOST_CACHES && cache_read_attribute(i, "level", text, sizeof text); i++) {
        if (atoi(text) != level || !cache_read_attribute(i, "type", text, sizeof text)) continue;
        if (strcmp(text, "Instruction") == 0) continue;
        if (!cache_read_attribute(i, "size", text, sizeof text)) return 0;
        char *unit;
        double size = strtod(text, &unit);
        return size * (*unit == 'K' ? 1024 : *unit == 'M' ? 1 << 20 : 1);
    }
    return 0;
}
/* True if the number is in a list of the kernel, for example 0-3,64. */
static bool cpu_list_has_number(const char *list, int number)
{
    for (const char *at = list; *at >= '0' && *at <= '9';) {
        char *end;
        long first = strtol(at, &end, 10), last = *end == '-' ? strtol(end + 1, &end, 10) : first;
        if (number >= first && number <= last) return true;
        if (*end != ',') return false;
        at = end + 1;
    }
    return false;
}
bool cores_are_siblings(int a, int b)
{
    char path[128], list[256];
    snprintf(path, sizeof path, "%s/cpu%d/topology/thread_siblings_list", cpus, a);
    return file_read_first_line(path, list, sizeof list) && cpu_list_has_number(list, b);
}
/* Reads the name of the processor; "" if /proc/cpuinfo has none. */
static void processor_read_name(char *out, int bytes)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256];
    out[0] = 0;
    while (file && !out[0] && fgets(line, sizeof line, file)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !value) continue;
        value[strcspn(value, "\n")] = 0;
        snprintf(out, (size_t)bytes, "%s", value + 1 + strspn(value + 1, " "));
    }
    if (file) fclose(file);
}
void machine_format_identity(int distance, char out[IDENTITY_BYTES])
{
    char processor[128];
    struct utsname system;
    processor_read_name(processor, sizeof processor);
    bool has_system = uname(&system) == 0;
    snprintf(out, IDENTITY_BYTES, "tutti %s, probe %d, %s, %s, %ld cores, %s %s, distance %d", TUTTI_VERSION,
        PROBE_NUMBER, has_system ? system.machine : "", processor, sysconf(_SC_NPROCESSORS_ONLN),
        has_system ? system.sysname : "", has_system ? system.release : "", distance);
}
