/* Reports of faults, on standard error. */
#pragma once
#include "tests/fake_cuda/machine.h"
#include <stddef.h>

/* A report that is being written. */
struct report {
    size_t bytes;
    char text[16384];
};
struct report report_begin(const char *format, ...) __attribute__((format(printf, 1, 2)));
void report_line(struct report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));
void report_stack(struct report *report, const char *role, const char *call, const struct call_stack *stack);
/* Prints the report and counts it; aborts the process if FAKE_CUDA_REPORT asks for it. */
void report_end(const struct report *report);
/* Sets *out to the stack of the caller. */
void call_stack_take(struct call_stack *out);
