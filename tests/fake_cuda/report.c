/* Writes reports, and makes a process that has reported a fault end with status 86. */
#include "tests/fake_cuda/report.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/settings.h"
#include <execinfo.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { STATUS_REPORTED = 86, MOST_PRINTED = 20 };
static atomic_uint reports;
VISIBLE unsigned fake_cuda_reports(void) { return atomic_load(&reports); }

static void report_add(struct report *report, const char *format, va_list arguments)
{
    size_t room = sizeof report->text - report->bytes;
    int bytes = vsnprintf(report->text + report->bytes, room, format, arguments);
    report->bytes += bytes < 0 ? 0 : (size_t)bytes < room ? (size_t)bytes : room - 1;
}
static void report_print(struct report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void report_print(struct report *report, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    report_add(report, format, arguments);
    va_end(arguments);
}
struct report report_begin(const char *format, ...)
{
    struct report report = { 0 };
    va_list arguments;
    report_print(&report, "fake CUDA: process %d: ", (int)getpid());
    va_start(arguments, format);
    report_add(&report, format, arguments);
    va_end(arguments);
    report_print(&report, "\n");
    return report;
}
void report_line(struct report *report, const char *format, ...)
{
    va_list arguments;
    report_print(report, "  ");
    va_start(arguments, format);
    report_add(report, format, arguments);
    va_end(arguments);
    report_print(report, "\n");
}

/* Prints the file and the offset in it of an address of another program. */
static void report_foreign_frame(struct report *report, int pid, const void *frame)
{
    char path[32], line[512], file[400];
    unsigned long begin, end, offset;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *maps = fopen(path, "re");
    bool found = false;
    while (maps && !found && fgets(line, sizeof line, maps))
        found = sscanf(line, "%lx-%lx %*s %lx %*s %*s %399s", &begin, &end, &offset, file) == 4
            && begin <= (unsigned long)frame && (unsigned long)frame < end;
    if (maps) fclose(maps);
    if (found) report_line(report, "  %s(+%#lx)", file, (unsigned long)frame - begin + offset);
    else report_line(report, "  %p of a process that has ended", frame);
}
void report_stack(struct report *report, const char *role, const char *call, const struct call_stack *stack)
{
    struct call_stack here;
    call_stack_take(&here);
    report_line(report, "%s, %s, called in process %d by", call, role, stack->pid);
    char **names = stack->image == here.image ? backtrace_symbols(stack->frames, stack->count) : NULL;
    for (int i = 0; i < stack->count; i++) {
        if (names) report_line(report, "  %s", names[i]);
        else report_foreign_frame(report, stack->pid, stack->frames[i]);
    }
    free(names);
}
/* A report may come from a thread of the fake, which must not change the status of a process that ends by itself. */
static void exit_with_status(void)
{
    if (!fake_cuda_reports() || settings()->report == REPORT_PRINT) return;
    fprintf(stderr, "fake CUDA: process %d reported %u faults\n", (int)getpid(), fake_cuda_reports());
    fflush(NULL);
    _exit(STATUS_REPORTED);
}
void report_end(const struct report *report)
{
    unsigned before = atomic_fetch_add(&reports, 1);
    if (before < MOST_PRINTED && write(STDERR_FILENO, report->text, report->bytes) < 0) abort();
    if (before == 0) atexit(exit_with_status);
    if (settings()->report == REPORT_ABORT) abort();
}
/* The linker defines where this library begins and ends. */
extern const char __ehdr_start[] __attribute__((visibility("hidden"))), _end[] __attribute__((visibility("hidden")));
/* Leaves out the innermost frames, which are the fake's own and those of sanitizers. */
void call_stack_take(struct call_stack *out)
{
    enum { OWN_MOST = 8 };
    void *frames[FRAMES + OWN_MOST];
    int count = backtrace(frames, FRAMES + OWN_MOST), own = 0;
    for (int i = 0; i < count && i < OWN_MOST; i++)
        if ((char *)frames[i] >= __ehdr_start && (char *)frames[i] < _end) own = i + 1;
    count = count - own < FRAMES ? count - own : FRAMES;
    *out = (struct call_stack){ .count = count, .pid = getpid(), .image = __ehdr_start };
    for (int i = 0; i < count; i++) out->frames[i] = frames[i + own];
}
