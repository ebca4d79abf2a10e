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
/* Where a version of control groups has its data: the beginning of the group's line in /proc/self/cgroup, the folder
   below /sys/fs/cgroup, the files with the limit and the use in bytes, and the keys of memory.stat that count file
   pages. */
struct cgroup_version { const char *line, *folder, *limit, *used, *files[2]; };
static const struct cgroup_version versions[] = {
    { "0::", "", "memory.max", "memory.current", { "inactive_file ", "active_file " } },
    { ":memory:", "/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
        { "total_inactive_file ", "total_active_file " } },
};

/* Reads the first TEXT_BYTES - 1 bytes of a file. Returns false if the file is missing or empty. */
static bool file_read_text(const char *path, char text[TEXT_BYTES])
{
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = descriptor < 0 ? -1 : read(descriptor, text, TEXT_BYTES - 1);
    if (descriptor >= 0) close(descriptor);
    text[got > 0 ? got : 0] = 0;
    return got > 0;
}
/* Returns the number after `key` at the beginning of a line, or UINT64_MAX if there is no such line or no number, as
   for "max". */
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
/* Does text_number_after_key for the text of folder/file; UINT64_MAX if the file cannot be read. */
static uint64_t file_number_after_key(const char *folder, const char *file, const char *key)
{
    char path[PATH_BYTES + 64], text[TEXT_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    return file_read_text(path, text) ? text_number_after_key(text, key) : UINT64_MAX;
}
/* Returns the bytes that the cgroup in this folder may still use, counting its file cache as free. UINT64_MAX means
   that it has no limit, or none that can be read. */
static uint64_t cgroup_available_bytes(const char *folder, const struct cgroup_version *version)
{
    uint64_t limit = file_number_after_key(folder, version->limit, ""),
             used = file_number_after_key(folder, version->used, "");
    if (limit == UINT64_MAX || used == UINT64_MAX) return UINT64_MAX;
    for (int i = 0; i < 2; i++) {
        uint64_t file_bytes = file_number_after_key(folder, "memory.stat", version->files[i]);
        if (file_bytes != UINT64_MAX) used -= file_bytes < used ? file_bytes : used;
    }
    return limit > used ? limit - used : 0;
}
/* Returns the smallest cgroup_available_bytes of a group, whose path is the first `bytes` bytes of `group`, and of all
   groups above it. */
static uint64_t cgroups_least_available(const char *cgroups, const struct cgroup_version *version, const char *group,
    size_t bytes)
{
    uint64_t least = UINT64_MAX;
    char folder[PATH_BYTES];
    int length = snprintf(folder, sizeof folder, "%s%s%.*s", cgroups, version->folder, (int)bytes, group);
    size_t top_length = strlen(cgroups) + strlen(version->folder);
    if (length < 0 || length >= PATH_BYTES) return least;
    for (;;) {
        uint64_t available = cgroup_available_bytes(folder, version);
        if (available < least) least = available;
        char *last = strrchr(folder, '/');
        if (!last || (size_t)(last - folder) < top_length) return least;
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
        uint64_t available = cgroups_least_available(cgroups, &versions[i], group, strcspn(group, "\n"));
        if (available < least) least = available;
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
