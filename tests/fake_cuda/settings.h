/* The settings of the fake, from the environment. README.md has their table. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum delay { DELAY_NONE, DELAY_EVERY, DELAY_SHUFFLED };
enum report_action { REPORT_EXIT, REPORT_ABORT, REPORT_PRINT };
struct settings {
    int devices, driver_version;
    size_t memory_bytes;
    uint64_t seed;
    enum delay delay;
    unsigned delay_us;
    enum report_action report;
    bool ipc, peer, order, host_reads;
    const char *fail, *machine;
};
/* Returns the settings. The first call reads the environment. */
const struct settings *settings(void);
/* Reads the environment again, at the first call of a process, which may have changed it since the fake was loaded. */
void settings_read(void);
