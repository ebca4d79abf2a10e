/* A file with a rank's optimizer state, for states that do not fit in memory. The file is mapped, so updates read and
   write it like memory; only the states of about three units are in memory at a time. It has no name, so the kernel
   removes it when the process ends. */
#pragma once
#include "include/tutti.h"
#include <stdbool.h>
#include <stddef.h>

/* Bytes [begin, end) of the file have the state of one unit; whole pages. */
struct file_range { size_t begin, end; };
struct state_file {
    /* The mapping of the file, or NULL if there is no file. */
    char *memory;
    size_t bytes;
    int descriptor, units;
    /* [units], owned. */
    struct file_range *range;
    /* The unit whose update was last, or -1. Its state is still being written to the file. */
    int last_unit;
};
/* Creates the file in `directory`, and maps it. bytes[units] is how much state each unit has. With directory == NULL
   there is no file; then state_file_at must not be called, and the other calls do nothing. Refuses a directory that
   does not exist, that may not be written, that is in memory itself (tmpfs), or whose file system has no room. The
   caller must call state_file_close in every case. */
tutti_status state_file_open(struct state_file *file, const char *directory, const size_t *bytes, int units);
void state_file_close(struct state_file *file);
/* Returns the address of byte `offset` of the unit's state. */
void *state_file_at(const struct state_file *file, int unit, size_t offset);
/* Starts to read the unit's state into memory. */
void state_file_prefetch(const struct state_file *file, int unit);
/* Starts to write the unit's state to the file. Then waits until the state of the unit of the previous call is written,
   and frees its memory. Call it after each update. SYSTEM if the file cannot be written. */
tutti_status state_file_write_behind(struct state_file *file, int unit);
