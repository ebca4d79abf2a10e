/* Reads /proc/meminfo, and the limits of control groups of both versions. File pages count as free: the kernel drops
   them first. */
#include "backend/memory/available.h"
#include "backend/base/status.h"
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 1024, TEXT_BYTES = 8192 };
struct cgroup_version { const char *line, *folder, *limit, *used, *files[2]; };
static const struct cgroup_version versions[] = {
    { "0::", "", "memory.max", "memory.current", { "inactive_file ", "active_file " } },
    { ":memory:", "/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
        { "total_inactive_file ", "total_active_file " } },
};

/* Reads a small file. False: the file is missing or empty. */
static bool file_read_text(const char *path, char text[TEXT_BYTES])
{
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = descriptor < 0 ? -1 : read(descriptor, text, TEXT_BYTES - 1);
    if (descriptor >= 0) close(descriptor);
    text[got > 0 ? got : 0] = 0;
    return got > 0;
}
/* Returns the number after `key` at the beginning of a line, or UINT64_MAX, also for "max". */
static uint64_t text_number_after_key(const char *text, const char *key)
{
    for (const char *line = text; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
        if (strncmp(line, key, strlen(key)) != 0) continue;
        char *end;
        unsigned long long number = strtoull(line + strlen(key), &end, 10);
        return end == line + strlen(key) ? UINT64_MAX : number;
    }
    return UINT64_MAX;
}
static uint64_t file_number_after_key(const char *folder, const char *file, const char *key)
{
    char path[PATH_BYTES + 64], text[TEXT_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    return file_read_text(path, text) ? text_number_after_key(text, key) : UINT64_MAX;
}
/* Returns the bytes that this cgroup may still use, counting its file cache as free. UINT64_MAX: no limit. */
static uint64_t cgroup_available_bytes(const char *folder, const struct cgroup_version *v)
{
    uint64_t limit = file_number_after_key(folder, v->limit, ""), used = file_number_after_key(folder, v->used, "");
    if (limit == UINT64_MAX || used == UINT64_MAX) return UINT64_MAX;
    for (int i = 0; i < 2; i++) {
        uint64_t files = file_number_after_key(folder, "memory.stat", v->files[i]);
        if (files != UINT64_MAX) used -= files < used ? files : used;
    }
    return limit > used ? limit - used : 0;
}
/* Returns the smallest value of the group that a line of /proc/self/cgroup names and of all groups above it. */
static uint64_t cgroups_least_available(const char *cgroups, const struct cgroup_version *v, const char *group,
    size_t bytes)
{
    uint64_t least = UINT64_MAX;
    char folder[PATH_BYTES];
    int length = snprintf(folder, sizeof folder, "%s%s%.*s", cgroups, v->folder, (int)bytes, group);
    size_t top = strlen(cgroups) + strlen(v->folder);
    if (length < 0 || length >= PATH_BYTES) return least;
    for (;;) {
        uint64_t here = cgroup_available_bytes(folder, v);
        if (here < least) least = here;
        char *last = strrchr(folder, '/');
        if (!last || (size_t)(last - folder) < top) return least;
        *last = 0;
    }
}
uint64_t memory_available_bytes(const char *proc, const char *cgroups)
{
    char text[TEXT_BYTES], path[PATH_BYTES];
    uint64_t least = file_number_after_key(proc, "meminfo", "MemAvailable:");
    /* The kernel reports KiB. */
    if (least < UINT64_MAX / 1024) least *= 1024;
    snprintf(path, sizeof path, "%s/self/cgroup", proc);
    if (!file_read_text(path, text)) return least;
    for (int i = 0; i < 2; i++) {
        const char *found = strstr(text, versions[i].line);
        if (!found) continue;
        const char *group = found + strlen(versions[i].line);
        uint64_t here = cgroups_least_available(cgroups, &versions[i], group, strcspn(group, "\n"));
        if (here < least) least = here;
    }
    return least;
}
tutti_status memory_check(size_t bytes, const char *what)
{
    uint64_t available = memory_available_bytes("/proc", "/sys/fs/cgroup");
    if (bytes <= available) return TUTTI_OK;
    return status_fail(TUTTI_NO_MEMORY,
        "no memory for %s: %zu bytes are asked for, %llu are left on this machine, or to this process", what, bytes,
        (unsigned long long)available);
}
