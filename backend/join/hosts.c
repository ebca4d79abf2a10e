/* What is pretended is checked where it is read; what members say, by layout_create. */
#include "backend/join/hosts.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_HOSTS = 1 << 20 };

static tutti_status refuse(const char *text, int size, const char *why)
{
    return status_fail(TUTTI_INVALID_ARGUMENT,
        "TUTTI_HOSTS=%.100s %s; for %d ranks give a number of hosts (1 to %d), "
        "or the host of each rank, %d numbers from 0 to %d with commas between them",
        text, why, size, size, size, size - 1);
}
/* One number at *at, which moves behind it and a comma. False: there is none, or it is too large. */
static bool read_number(const char **at, int limit, int *out)
{
    char *end;
    errno = 0;
    long value = strtol(*at, &end, 10);
    bool fine = end != *at && !errno && value >= 0 && value < limit && (*end == ',' || !*end);
    if (!fine) return false;
    *out = (int)value;
    *at = *end ? end + 1 : end;
    return *end != ',' || end[1];                       /* no comma at the end */
}
static tutti_status parse_blocks(const char *text, int size, int *out)
{
    int blocks;
    if (!read_number(&text, size + 1, &blocks) || blocks < 1)
        return refuse(text, size, "is no number of hosts for them");
    for (int block = 0, r = 0; block < blocks; block++)
        for (int end = r + size / blocks + (block < size % blocks); r < end; r++) out[r] = block;
    return TUTTI_OK;
}
tutti_status hosts_parse(const char *text, int size, int *out)
{
    const char *at = text;
    memset(out, 0, (size_t)size * sizeof *out);
    if (!*text) return TUTTI_OK;
    if (!strchr(text, ',')) return parse_blocks(text, size, out);
    for (int r = 0; r < size; r++)
        if (!read_number(&at, size, &out[r])) return refuse(text, size, "does not name a host for each of them");
    return *at ? refuse(text, size, "names more hosts than there are ranks") : TUTTI_OK;
}
uint32_t hosts_number(const char *text, int size)
{
    uint32_t number = 2166136261u;                      /* FNV-1a */
    if (!*text) return 0;
    for (const char *c = text; *c; c++) number = (number ^ (unsigned char)*c) * 16777619u;
    return (number ^ (uint32_t)size) * 16777619u | 1;
}
/* A group has some of the job's hosts: they are numbered anew, below the number of its ranks. */
static tutti_status number_hosts(const struct group *g, int *out)
{
    int most = 0;
    for (int r = 0; r < g->size; r++) {
        int host = g->members[r].host;
        if (host < 0 || host >= MOST_HOSTS)
            return status_fail(TUTTI_MISMATCH, "rank %d of %s says that it is on host %d, of %d at most", r, g->name,
                host, MOST_HOSTS);
        if (host > most) most = host;
    }
    int *number = memory_zeroed((size_t)most + 1, sizeof *number), hosts = 0;  /* plus 1; 0: not met yet */
    if (!number) return status_fail(TUTTI_NO_MEMORY, "no memory for %d hosts", most + 1);
    for (int r = 0; r < g->size; r++) {
        int *mine = &number[g->members[r].host];
        if (!*mine) *mine = ++hosts;
        out[r] = *mine - 1;
    }
    free(number);
    return TUTTI_OK;
}
tutti_status hosts_layout(const struct group *group, struct layout **out)
{
    int *hosts = memory_zeroed((size_t)group->size, sizeof *hosts);
    if (!hosts) return status_fail(TUTTI_NO_MEMORY, "no memory for the hosts of %d ranks", group->size);
    tutti_status status = number_hosts(group, hosts);
    if (status == TUTTI_OK) status = layout_create(hosts, group->size, out);
    free(hosts);
    return status;
}
