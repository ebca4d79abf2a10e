/* Reads the settings of the fake. A value that is not understood ends the process, so that no test runs without what it
   asked for. */
#include "tests/fake_cuda/settings.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct settings values;

static _Noreturn void setting_refuse(const char *name, const char *text, const char *expected)
{
    fprintf(stderr, "fake CUDA: %s=%s is not understood; it is %s\n", name, text, expected);
    exit(2);
}
static const char *setting_text(const char *name)
{
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}
static uint64_t setting_number(const char *name, uint64_t otherwise)
{
    const char *text = setting_text(name);
    char *end;
    if (!text) return otherwise;
    uint64_t number = strtoull(text, &end, 0);
    if (*end) setting_refuse(name, text, "a number");
    return number;
}
static int setting_choice(const char *name, const char *const *words)
{
    const char *text = setting_text(name);
    if (!text) return 0;
    char expected[80] = "one of";
    for (int i = 0; words[i]; i++) {
        if (strcmp(text, words[i]) == 0) return i;
        strncat(strncat(expected, " ", 2), words[i], 20);
    }
    setting_refuse(name, text, expected);
}
void settings_read(void)
{
    static const char *const delays[] = { "immediate", "delayed", "shuffled", NULL };
    static const char *const reports[] = { "exit", "abort", "print", NULL };
    values = (struct settings){
        .devices = (int)setting_number("FAKE_CUDA_DEVICES", 2),
        .driver_version = (int)setting_number("FAKE_CUDA_VERSION", 13000),
        .memory_bytes = setting_number("FAKE_CUDA_MEMORY", 1u << 30),
        .seed = setting_number("FAKE_CUDA_SEED", 1),
        .delay = (enum delay)setting_choice("FAKE_CUDA_DELAY", delays),
        .delay_us = (unsigned)setting_number("FAKE_CUDA_DELAY_US", 1000),
        .report = (enum report_action)setting_choice("FAKE_CUDA_REPORT", reports),
        .ipc = setting_number("FAKE_CUDA_IPC", 1),
        .peer = setting_number("FAKE_CUDA_PEER", 1),
        .order = setting_number("FAKE_CUDA_ORDER", 1),
        .host_reads = setting_number("FAKE_CUDA_HOST_READS", 1),
        .fail = setting_text("FAKE_CUDA_FAIL"),
        .machine = setting_text("FAKE_CUDA_MACHINE"),
    };
}
const struct settings *settings(void)
{
    if (!values.devices && !values.driver_version) settings_read();
    return &values;
}
