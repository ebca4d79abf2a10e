/* Introspection: one JSON object for bug reports, one with the parameters by which a group chooses algorithms, and
   schedules as text. */
#include "backend/info/info.h"
#include "backend/base/memory.h"
#include "backend/base/settings.h"
#include "backend/base/status.h"
#include "backend/base/text_buffer.h"
#include "backend/collectives/collectives.h"
#include "backend/model/cost.h"
#include "backend/transports/fabrics.h"
#include "backend/transports/ucx/ucx.h"
#include "backend/transports/verbs/verbs.h"
#include "kernels/reduce.h"
#include "kernels/stream.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Appends a resource limit of this process (RLIMIT_…) as JSON, null if it is unlimited, and then the text `after`. */
static void text_append_limit(struct text_buffer *text, const char *name, int resource, const char *after)
{
    struct rlimit limit;
    bool is_known = getrlimit((__rlimit_resource_t)resource, &limit) == 0;
    text_append_string(text, name);
    if (!is_known || limit.rlim_cur == RLIM_INFINITY) text_append(text, ": null%s", after);
    else text_append(text, ": %llu%s", (unsigned long long)limit.rlim_cur, after);
}

/* ---- parts ---- */
/* Appends the name of the host, its kernel, and the number of cores that this process may use. */
static void text_append_host(struct text_buffer *text)
{
    struct utsname name;
    char host[64] = "";
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    gethostname(host, sizeof host - 1);
    text_append(text, "\"host\": {");
    text_append_pair(text, "name", host, ", ");
    text_append_pair(text, "kernel", uname(&name) == 0 ? name.release : "", ", ");
    text_append(text, "\"usable_cores\": %d}, ", cores);
}
static void text_append_limits(struct text_buffer *text)
{
    struct statvfs shm;
    text_append(text, "\"limits\": {");
    text_append_limit(text, "memlock_bytes", RLIMIT_MEMLOCK, ", ");
    text_append_limit(text, "open_files", RLIMIT_NOFILE, ", ");
    text_append_limit(text, "address_space_bytes", RLIMIT_AS, ", ");
    if (statvfs("/dev/shm", &shm) == 0)
        text_append(text, "\"dev_shm_bytes\": %llu}, ", (unsigned long long)shm.f_blocks * shm.f_frsize);
    else text_append(text, "\"dev_shm_bytes\": null}, ");
}
/* Appends the instruction set that the kernels use, and those that are available. */
static void text_append_kernels(struct text_buffer *text)
{
    text_append(text, "\"isa\": {");
    text_append_pair(text, "used", kernels_isa(), ", \"available\": [");
    for (int i = 0; kernels_isa_name(i); i++) {
        if (i) text_append(text, ", ");
        text_append_string(text, kernels_isa_name(i));
    }
    text_append(text, "]}, ");
}
/* Appends a number that is not negative with six decimals, as JSON requires it, in any locale. */
static void text_append_decimal(struct text_buffer *text, double value)
{
    enum { MILLION = 1000000 };
    unsigned long long millionths = (unsigned long long)(value * MILLION + 0.5);
    text_append(text, "%llu.%06llu", millionths / MILLION, millionths % MILLION);
}
/* Appends the parameters that ranks of this host choose by. Measures them now if they are not available. */
static void text_append_machine(struct text_buffer *text)
{
    const struct machine_row *rows;
    int count = machine_get_rows(&rows);
    struct machine machine = machine_get_or_measure(stream_find());
    struct spin_budget spin_budget = machine_spin_budget(&machine, 0);
    size_t tile = machine_largest_tile(&machine);
    text_append(text, "\"machine\": {");
    for (int i = 0; i < count; i++) {
        text_append(text, "\"%s (%s)\": ", rows[i].help, rows[i].unit);
        text_append_decimal(text, machine_get_parameter(&machine, i));
        text_append(text, ", ");
    }
    text_append(text, "\"largest tile (bytes)\": %zu, \"such tiles in flight\": %d, ", tile,
        machine_tiles_in_flight(&machine, tile, false));
    text_append(text, "\"pauses before a yield\": %d, \"yields before a sleep\": %d}, ", spin_budget.pauses,
        spin_budget.yields);
}
/* Writes the names of the transports between hosts that the settings choose, and the reason if it is the default. */
static void transport_describe_choice(char *out, size_t bytes)
{
    const char *given = settings_get()->transport;
    char names[FABRIC_TEXT_BYTES];
    fabrics_print_names(fabrics_parse_names(given, NULL), names);
    bool uses_sockets = strcmp(names, "tcp") == 0;
    if (*given) snprintf(out, bytes, "%s", *names ? names : "TUTTI_TRANSPORT names an unknown transport");
    else snprintf(out, bytes, "%s, because %s RDMA port of this host is active", names, uses_sockets ? "no" : "an");
}
static void text_append_transports(struct text_buffer *text)
{
    char ucx[1024], verbs[1024], choice[128];
    transport_describe_choice(choice, sizeof choice);
    ucx_describe(ucx, sizeof ucx);
    verbs_describe(verbs, sizeof verbs);
    text_append(text, "\"transports\": {");
    text_append_pair(text, "shm", "yes: ranks of one host share memory (memfd, no files in /dev/shm)", ", ");
    text_append_pair(text, "single copy", reading_describe(), ", ");
    text_append_pair(text, "ucx", ucx, ", ");
    text_append_pair(text, "verbs", verbs, ", ");
    text_append_pair(text, "tcp", "yes: the system's sockets", ", ");
    text_append_pair(text, "between hosts", choice, "}, ");
}
/* Appends all settings with their values in this process. */
static void text_append_settings(struct text_buffer *text)
{
    const struct settings_row *rows;
    int count = settings_table(&rows);
    text_append(text, "\"settings\": [");
    for (int i = 0; i < count; i++) {
        const char *given = settings_read_variable(rows[i].variable);
        text_append(text, "%s{", i ? ", " : "");
        text_append_pair(text, "name", rows[i].variable, ", ");
        text_append_pair(text, "default", rows[i].value, ", ");
        text_append_pair(text, "range", rows[i].range, ", ");
        text_append_pair(text, "help", rows[i].help, ", \"value\": ");
        text_append_string(text, given ? given : rows[i].value);
        text_append(text, "}");
    }
    text_append(text, "], ");
}
/* Appends the names of the algorithms of each collective. */
static void text_append_algorithms(struct text_buffer *text)
{
    text_append(text, "\"algorithms\": {");
    for (int f = 0; f < COLLECTIVE_COUNT; f++) {
        const char *before = "";
        text_append(text, "%s", f ? ", " : "");
        text_append_string(text, collective_name((enum collective)f));
        text_append(text, ": [");
        for (const struct algorithm *algorithm = collectives_table; algorithm->name; algorithm++)
            if (algorithm->collective == (enum collective)f) {
                text_append(text, "%s", before);
                text_append_string(text, algorithm->name);
                before = ", ";
            }
        text_append(text, "]");
    }
    text_append(text, "}");
}
tutti_status info_write_json(char *buffer, size_t capacity, size_t *bytes)
{
    struct text_buffer text = { buffer, capacity, 0 };
    text_append(&text, "{");
    text_append_pair(&text, "version", TUTTI_VERSION, ", ");
    text_append_pair(&text, "compiler", __VERSION__, ", ");
    text_append_host(&text);
    text_append_kernels(&text);
    text_append_machine(&text);
    text_append_transports(&text);
    text_append_limits(&text);
    text_append_settings(&text);
    text_append_algorithms(&text);
    text_append(&text, "}");
    if (bytes) *bytes = text.length;
    return TUTTI_OK;
}

/* ---- a group ---- */
/* Appends the machine parameters by which a group chooses, with typical values. */
static void text_append_parameters(struct text_buffer *text, const struct machine *machine)
{
    const struct machine_row *rows;
    int count = machine_get_rows(&rows);
    text_append(text, "\"figures\": {");
    for (int i = 0; i < count; i++) {
        text_append_string(text, rows[i].name);
        text_append(text, ": {\"value\": ");
        text_append_decimal(text, machine_get_parameter(machine, i));
        text_append(text, ", \"typical\": ");
        text_append_decimal(text, rows[i].typical);
        text_append(text, ", ");
        text_append_pair(text, "unit", rows[i].unit, ", ");
        text_append_pair(text, "help", rows[i].help, i + 1 < count ? "}, " : "}");
    }
    text_append(text, "}");
}
/* Appends whether this rank can read private tensors of the other ranks of its host by single copy. The first operation
   that may need single copy tests this. */
static void text_append_single_copy(struct text_buffer *text, const tutti_comm *comm)
{
    const struct tensor_access *access = &comm->tensor_access;
    int reading = atomic_load(&access->reading);
    char description[320];
    if (comm->launcher.single_copy == 0) snprintf(description, sizeof description, "no: TUTTI_SINGLE_COPY is 0");
    else if (reading == READING_UNKNOWN)
        snprintf(description, sizeof description, "not known: no operation has needed it yet, or memory was short");
    else if (reading == READING_WORKS)
        snprintf(description, sizeof description, "possible: the kernel reads tensors of the other ranks for this one");
    else
        snprintf(description, sizeof description, "no: the memory of rank %d cannot be read: %s", access->unreadable,
            reading_reason(access->error));
    text_append_pair(text, "single_copy", description, ", ");
}
tutti_status info_write_group(const tutti_comm *comm, char *buffer, size_t capacity, size_t *bytes)
{
    struct text_buffer text = { buffer, capacity, 0 };
    const struct group *group = &comm->group;
    const struct chooser *chooser = &comm->launcher.chooser;
    text_append(&text, "{");
    text_append_pair(&text, "name", group->name, ", ");
    text_append(&text, "\"rank\": %d, \"ranks\": %d, \"ranks_of_host\": [", group->rank, group->size);
    for (int h = 0; h < group->layout->hosts; h++)
        text_append(&text, "%s%d", h ? ", " : "", layout_host_size(group->layout, h));
    text_append(&text, "], \"cores_of_host\": %d, ", chooser->cores);
    text_append_single_copy(&text, comm);
    text_append_parameters(&text, &chooser->machine);
    text_append(&text, "}");
    if (bytes) *bytes = text.length;
    return TUTTI_OK;
}

/* ---- schedules ---- */
/* Creates a layout that suits the algorithm: one host, two hosts for hierarchical algorithms, and for algorithms of
   messages a host for every rank. */
static tutti_status layout_create_for_algorithm(const struct algorithm *algorithm, int ranks, struct layout **out)
{
    int *hosts = memory_alloc_zeroed((size_t)ranks, sizeof *hosts);
    if (!hosts) return status_fail(TUTTI_NO_MEMORY, "no memory for %d ranks", ranks);
    for (int r = 0; r < ranks && !algorithm->host_memory; r++) hosts[r] = algorithm->hierarchical ? 2 * r / ranks : r;
    tutti_status status = layout_create(hosts, ranks, out);
    free(hosts);
    return status;
}
tutti_status info_write_schedule(const struct algorithm *algorithm, int ranks, int root, char *buffer, size_t capacity,
    size_t *bytes)
{
    if (ranks < 1 || ranks > 4096)
        return status_fail(TUTTI_INVALID_ARGUMENT, "a schedule of %d ranks: 1 to 4096 can be printed", ranks);
    if (root < 0 || root >= ranks)
        return status_fail(TUTTI_INVALID_ARGUMENT, "root %d is not one of %d ranks", root, ranks);
    struct layout *layout;
    TRY(layout_create_for_algorithm(algorithm, ranks, &layout));
    struct plan plan = { .algorithm = algorithm, .layout = layout, .root = root, .slots = 1 };
    tutti_status status = plan_build_staging(&plan);
    size_t length = status == TUTTI_OK ? plan_print(&plan, buffer, capacity) : 0;
    if (status != TUTTI_OK)
        status_fail(status, "%s %s: %s", collective_name(algorithm->collective), algorithm->name, plan.error);
    plan_finish(&plan);
    layout_destroy(layout);
    if (bytes) *bytes = length;
    return status;
}
