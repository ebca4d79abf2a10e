/* The kernel reads and writes the file while the processor updates other units: madvise(MADV_WILLNEED) starts a read,
   and sync_file_range starts a write without waiting. Pages leave memory only when they are written, so a unit is freed
   when the next one has been updated. */
#include "zero/state_file.h"
#include "backend/base/descriptor.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Ranges begin at multiples of RANGE_BYTES, the largest page of Linux systems. TMPFS is the number that statfs gives a
   file system in memory (linux/magic.h). */
enum { RANGE_BYTES = 1 << 16, PATH_BYTES = 4096, TMPFS = 0x01021994 };

/* ---- opening ---- */
/* Refuses the directory, with the error number of a failed call. */
static tutti_status directory_refuse(const char *directory, const char *what, int error)
{
    return status_refuse(TUTTI_INVALID_ARGUMENT, "zero: optimizer state cannot be in a file in %s: %s: %s", directory,
        what, strerror(error));
}
/* Creates a file without a name in the directory. Returns its descriptor, or -1 with errno. */
static int directory_create_file(const char *directory)
{
    char path[PATH_BYTES];
    int file = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file >= 0 || errno != EOPNOTSUPP) return file;
    /* Not all file systems can create a file without a name. */
    if (snprintf(path, sizeof path, "%s/tutti-state-XXXXXX", directory) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    file = mkostemp(path, O_CLOEXEC);
    if (file >= 0) unlink(path);
    return file;
}
/* Gives each unit its range of the file, and the file its size. */
static tutti_status state_file_divide(struct state_file *file, const size_t *bytes)
{
    file->range = memory_alloc_zeroed((size_t)file->units, sizeof *file->range);
    if (!file->range) return status_fail(TUTTI_NO_MEMORY, "zero: no memory for %d units", file->units);
    for (int u = 0; u < file->units; u++) {
        size_t begin = file->bytes;
        file->bytes += size_round_up(bytes[u], RANGE_BYTES);
        file->range[u] = (struct file_range){ begin, file->bytes };
    }
    return TUTTI_OK;
}
tutti_status state_file_open(struct state_file *file, const char *directory, const size_t *bytes, int units)
{
    *file = (struct state_file){ .descriptor = -1, .units = units, .last_unit = -1 };
    if (!directory) return TUTTI_OK;
    TRY(state_file_divide(file, bytes));
    if (!file->bytes) return TUTTI_OK;
    file->descriptor = descriptor_move_above_stderr(directory_create_file(directory));
    if (file->descriptor < 0) return directory_refuse(directory, "a file cannot be created", errno);
    struct statfs system;
    if (fstatfs(file->descriptor, &system) == 0 && system.f_type == TMPFS)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "zero: optimizer state in a file in %s would stay in memory, because this is a tmpfs; name a directory on "
            "a disk",
            directory);
    /* Without room on the disk a later write to the mapping would end the process by SIGBUS. */
    int error = posix_fallocate(file->descriptor, 0, (off_t)file->bytes);
    if (error) return directory_refuse(directory, "there is no room", error);
    void *memory = mmap(NULL, file->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file->descriptor, 0);
    if (memory == MAP_FAILED) return directory_refuse(directory, "mmap", errno);
    file->memory = memory;
    return TUTTI_OK;
}
void state_file_close(struct state_file *file)
{
    if (file->memory) munmap(file->memory, file->bytes);
    if (file->descriptor >= 0) close(file->descriptor);
    free(file->range);
}

/* ---- use ---- */
void *state_file_at(const struct state_file *file, int unit, size_t offset)
{
    return file->memory + file->range[unit].begin + offset;
}
void state_file_prefetch(const struct state_file *file, int unit)
{
    if (!file->memory) return;
    const struct file_range *range = &file->range[unit];
    madvise(file->memory + range->begin, range->end - range->begin, MADV_WILLNEED);
}
/* Waits until the unit's state is written, and frees its memory. */
static tutti_status state_file_free_unit(const struct state_file *file, int unit)
{
    const struct file_range *range = &file->range[unit];
    off_t begin = (off_t)range->begin, length = (off_t)(range->end - range->begin);
    int result = sync_file_range(file->descriptor, begin, length,
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    if (result != 0)
        return status_fail(TUTTI_SYSTEM, "zero: the optimizer state of unit %d cannot be written to its file: %s", unit,
            strerror(errno));
    /* The kernel drops no page that a process has mapped. */
    madvise(file->memory + range->begin, range->end - range->begin, MADV_DONTNEED);
    posix_fadvise(file->descriptor, begin, length, POSIX_FADV_DONTNEED);
    return TUTTI_OK;
}
tutti_status state_file_write_behind(struct state_file *file, int unit)
{
    if (!file->memory) return TUTTI_OK;
    const struct file_range *range = &file->range[unit];
    /* A length of 0 would mean all that follows. */
    if (range->begin == range->end) return TUTTI_OK;
    int before = file->last_unit;
    file->last_unit = unit;
    /* The wait for this write, after the next update, reports its errors. */
    sync_file_range(file->descriptor, (off_t)range->begin, (off_t)(range->end - range->begin), SYNC_FILE_RANGE_WRITE);
    return before < 0 || before == unit ? TUTTI_OK : state_file_free_unit(file, before);
}
