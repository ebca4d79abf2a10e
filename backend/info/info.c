/* Introspection: one JSON object for bug reports, one with the parameters by which a group chooses algorithms, and
   schedules as text. */
#include "backend/info/info.h"
#include "backend/base/memory.h"
#include "backend/base/settings.h"
#include "backend/base/status.h"
#include "backend/collectives/collectives.h"
#include "backend/model/price.h"
#include "backend/transports/fabrics.h"
#include "backend/transports/ucx/ucx.h"
#include "backend/transports/verbs/verbs.h"
#include "kernels/reduce.h"
#include "kernels/stream.h"
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

struct info_text { char *at; size_t capacity, length; };
static void text_put(struct info_text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void text_put(struct info_text *t, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    size_t room = t->length < t->capacity ? t->capacity - t->length : 0;
    int n = vsnprintf(room ? t->at + t->length : NULL, room, format, arguments);
    va_end(arguments);
    if (n > 0) t->length += (size_t)n;
}
/* Appends a JSON string. */
static void put_string(struct info_text *t, const char *s)
{
    text_put(t, "\"");
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') text_put(t, "\\%c", *s);
        else if ((unsigned char)*s < 32) text_put(t, "\\u%04x", (unsigned)*s);
        else text_put(t, "%c", *s);
    }
    text_put(t, "\"");
}
static void put_pair(struct info_text *t, const char *name, const char *value, const char *after)
{
    put_string(t, name);
    text_put(t, ": ");
    put_string(t, value);
    text_put(t, "%s", after);
}
static void put_limit(struct info_text *t, const char *name, int which, const char *after)
{
    struct rlimit limit;
    bool known = getrlimit((__rlimit_resource_t)which, &limit) == 0;
    put_string(t, name);
    if (!known || limit.rlim_cur == RLIM_INFINITY) text_put(t, ": null%s", after);
    else text_put(t, ": %llu%s", (unsigned long long)limit.rlim_cur, after);
}

/* ---- parts ---- */
static void put_host(struct info_text *t)
{
    struct utsname name;
    char host[64] = "";
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    gethostname(host, sizeof host - 1);
    text_put(t, "\"host\": {");
    put_pair(t, "name", host, ", ");
    put_pair(t, "kernel", uname(&name) == 0 ? name.release : "", ", ");
    text_put(t, "\"usable_cores\": %d}, ", cores);
}
static void put_limits(struct info_text *t)
{
    struct statvfs shm;
    text_put(t, "\"limits\": {");
    put_limit(t, "memlock_bytes", RLIMIT_MEMLOCK, ", ");
    put_limit(t, "open_files", RLIMIT_NOFILE, ", ");
    put_limit(t, "address_space_bytes", RLIMIT_AS, ", ");
    if (statvfs("/dev/shm", &shm) == 0)
        text_put(t, "\"dev_shm_bytes\": %llu}, ", (unsigned long long)shm.f_blocks * shm.f_frsize);
    else text_put(t, "\"dev_shm_bytes\": null}, ");
}
static void put_kernels(struct info_text *t)
{
    text_put(t, "\"isa\": {");
    put_pair(t, "used", kernels_isa(), ", \"available\": [");
    for (int i = 0; kernels_isa_name(i); i++) {
        if (i) text_put(t, ", ");
        put_string(t, kernels_isa_name(i));
    }
    text_put(t, "]}, ");
}
/* Appends a number as JSON requires it, in any locale. */
static void put_decimal(struct info_text *t, double value)
{
    enum { MILLION = 1000000 };
    unsigned long long millionths = (unsigned long long)(value * MILLION + 0.5);
    text_put(t, "%llu.%06llu", millionths / MILLION, millionths % MILLION);
}
/* Appends the parameters that ranks of this host choose by. Measures them now if they are not available. */
static void put_machine(struct info_text *t)
{
    const struct machine_row *rows;
    int count = machine_table(&rows);
    struct machine machine = machine_get(stream_find());
    struct spin_budget spin_budget = price_spin_budget(&machine, 0);
    size_t tile = price_largest_tile(&machine);
    text_put(t, "\"machine\": {");
    for (int i = 0; i < count; i++) {
        text_put(t, "\"%s (%s)\": ", rows[i].help, rows[i].unit);
        put_decimal(t, machine_figure(&machine, i));
        text_put(t, ", ");
    }
    text_put(t, "\"largest tile (bytes)\": %zu, \"such tiles in flight\": %d, ", tile,
        price_slots(&machine, tile, false));
    text_put(t, "\"pauses before a yield\": %d, \"yields before a sleep\": %d}, ", spin_budget.pauses,
        spin_budget.yields);
}
static void describe_choice(char *out, size_t bytes)
{
    const char *given = settings_get()->transport;
    char names[FABRIC_TEXT_BYTES];
    fabrics_print(fabrics_parse(given, NULL), names);
    bool sockets = strcmp(names, "tcp") == 0;
    if (*given) snprintf(out, bytes, "%s", *names ? names : "TUTTI_TRANSPORT names an unknown transport");
    else snprintf(out, bytes, "%s, because %s RDMA port of this host is active", names, sockets ? "no" : "an");
}
static void put_transports(struct info_text *t)
{
    char ucx[1024], verbs[1024], choice[128];
    describe_choice(choice, sizeof choice);
    ucx_describe(ucx, sizeof ucx);
    verbs_describe(verbs, sizeof verbs);
    text_put(t, "\"transports\": {");
    put_pair(t, "shm", "yes: ranks of one host share memory (memfd, no files in /dev/shm)", ", ");
    put_pair(t, "single copy", reading_describe(), ", ");
    put_pair(t, "ucx", ucx, ", ");
    put_pair(t, "verbs", verbs, ", ");
    put_pair(t, "tcp", "yes: the system's sockets", ", ");
    put_pair(t, "between hosts", choice, "}, ");
}
static void put_settings(struct info_text *t)
{
    const struct settings_row *rows;
    int count = settings_table(&rows);
    text_put(t, "\"settings\": [");
    for (int i = 0; i < count; i++) {
        const char *given = settings_given(rows[i].variable);
        text_put(t, "%s{", i ? ", " : "");
        put_pair(t, "name", rows[i].variable, ", ");
        put_pair(t, "default", rows[i].value, ", ");
        put_pair(t, "range", rows[i].range, ", ");
        put_pair(t, "help", rows[i].help, ", \"value\": ");
        put_string(t, given ? given : rows[i].value);
        text_put(t, "}");
    }
    text_put(t, "], ");
}
static void put_algorithms(struct info_text *t)
{
    text_put(t, "\"algorithms\": {");
    for (int f = 0; f < FAMILY_COUNT; f++) {
        const char *before = "";
        text_put(t, "%s", f ? ", " : "");
        put_string(t, family_name((enum family)f));
        text_put(t, ": [");
        for (const struct algorithm *a = collectives_table; a->name; a++)
            if (a->family == (enum family)f) { text_put(t, "%s", before); put_string(t, a->name); before = ", "; }
        text_put(t, "]");
    }
    text_put(t, "}");
}
tutti_status info_json(char *buffer, size_t capacity, size_t *bytes)
{
    struct info_text t = { buffer, capacity, 0 };
    text_put(&t, "{");
    put_pair(&t, "version", TUTTI_VERSION, ", ");
    put_pair(&t, "compiler", __VERSION__, ", ");
    put_host(&t);
    put_kernels(&t);
    put_machine(&t);
    put_transports(&t);
    put_limits(&t);
    put_settings(&t);
    put_algorithms(&t);
    text_put(&t, "}");
    if (bytes) *bytes = t.length;
    return TUTTI_OK;
}

/* ---- a group ---- */
static void parameters_put(struct info_text *t, const struct machine *machine)
{
    const struct machine_row *rows;
    int count = machine_table(&rows);
    text_put(t, "\"figures\": {");
    for (int i = 0; i < count; i++) {
        put_string(t, rows[i].name);
        text_put(t, ": {\"value\": ");
        put_decimal(t, machine_figure(machine, i));
        text_put(t, ", \"typical\": ");
        put_decimal(t, rows[i].typical);
        text_put(t, ", ");
        put_pair(t, "unit", rows[i].unit, ", ");
        put_pair(t, "help", rows[i].help, i + 1 < count ? "}, " : "}");
    }
    text_put(t, "}");
}
/* Appends whether private tensors of peers can be read where they lie. The first operation that may need it tests
   this. */
static void put_single_copy(struct info_text *t, const tutti_comm *comm)
{
    const struct reach *reach = &comm->reach;
    int known = atomic_load(&reach->reading);
    char said[320];
    if (comm->launcher.single_copy == 0) snprintf(said, sizeof said, "no: TUTTI_SINGLE_COPY is 0");
    else if (known == READING_UNKNOWN) snprintf(said, sizeof said, "not tried: no operation has needed it yet");
    else if (known == READING_WORKS)
        snprintf(said, sizeof said, "possible: the kernel reads tensors of the other ranks for this one");
    else
        snprintf(said, sizeof said, "no: the memory of rank %d cannot be read: %s", reach->unreadable,
            reading_reason(reach->error));
    put_pair(t, "single_copy", said, ", ");
}
tutti_status info_group(const tutti_comm *comm, char *buffer, size_t capacity, size_t *bytes)
{
    struct info_text t = { buffer, capacity, 0 };
    const struct group *g = &comm->group;
    const struct chooser *chooser = &comm->launcher.chooser;
    text_put(&t, "{");
    put_pair(&t, "name", g->name, ", ");
    text_put(&t, "\"rank\": %d, \"ranks\": %d, \"ranks_of_host\": [", g->rank, g->size);
    for (int h = 0; h < g->layout->hosts; h++) text_put(&t, "%s%d", h ? ", " : "", host_size(g->layout, h));
    text_put(&t, "], \"cores_of_host\": %d, ", chooser->cores);
    put_single_copy(&t, comm);
    parameters_put(&t, &chooser->machine);
    text_put(&t, "}");
    if (bytes) *bytes = t.length;
    return TUTTI_OK;
}

/* ---- schedules ---- */
/* Creates a layout that suits the algorithm: one host, two hosts for hierarchical algorithms, and for algorithms of
   messages a host for every rank. */
static tutti_status schedule_layout(const struct algorithm *algorithm, int ranks, struct layout **out)
{
    int *hosts = memory_zeroed((size_t)ranks, sizeof *hosts);
    if (!hosts) return status_fail(TUTTI_NO_MEMORY, "no memory for %d ranks", ranks);
    for (int r = 0; r < ranks && !algorithm->host_memory; r++) hosts[r] = algorithm->hierarchical ? 2 * r / ranks : r;
    tutti_status status = layout_create(hosts, ranks, out);
    free(hosts);
    return status;
}
tutti_status info_schedule(const struct algorithm *algorithm, int ranks, int root, char *buffer, size_t capacity,
    size_t *bytes)
{
    if (ranks < 1 || ranks > 4096)
        return status_fail(TUTTI_INVALID_ARGUMENT, "a schedule of %d ranks: 1 to 4096 can be printed", ranks);
    if (root < 0 || root >= ranks)
        return status_fail(TUTTI_INVALID_ARGUMENT, "root %d is not one of %d ranks", root, ranks);
    struct layout *layout;
    TRY(schedule_layout(algorithm, ranks, &layout));
    struct plan plan = { .algorithm = algorithm, .layout = layout, .root = root, .slots = 1 };
    tutti_status status = plan_build_staging(&plan);
    size_t length = status == TUTTI_OK ? plan_print(&plan, buffer, capacity) : 0;
    if (status != TUTTI_OK)
        status_fail(status, "%s %s: %s", family_name(algorithm->family), algorithm->name, plan.error);
    plan_finish(&plan);
    layout_destroy(layout);
    if (bytes) *bytes = length;
    return status;
}
