/* Reads TUTTI_HOSTS, and checks the hosts that the members of a group report. */
#include "backend/join/hosts.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_HOSTS = 1 << 20 };

/* Fails because TUTTI_HOSTS=text does not fit `size` ranks. `problem` follows it in the error. */
static tutti_status hosts_fail_setting(const char *text, int size, const char *problem)
{
    return status_fail(TUTTI_INVALID_ARGUMENT,
        "TUTTI_HOSTS=%.100s %s; for %d ranks give a number of hosts (1 to %d), or the host of each rank, %d numbers "
        "from 0 to %d separated by commas",
        text, problem, size, size, size, size - 1);
}
/* Reads the number at *at, which must be below the limit, and moves *at behind it and a comma. Returns false if there
   is no such number. */
static bool hosts_read_number(const char **at, int limit, int *out)
{
    char *end;
    errno = 0;
    long value = strtol(*at, &end, 10);
    bool is_valid = end != *at && !errno && value >= 0 && value < limit && (*end == ',' || !*end);
    if (!is_valid) return false;
    *out = (int)value;
    *at = *end ? end + 1 : end;
    /* A comma at the end of the text is an error. */
    return *end != ',' || end[1];
}
/* Parses TUTTI_HOSTS=N: divides `size` ranks into N hosts of consecutive ranks, and sets out[r] to the host of rank
   r. */
static tutti_status hosts_parse_blocks(const char *text, int size, int *out)
{
    int blocks;
    if (!hosts_read_number(&text, size + 1, &blocks) || blocks < 1)
        return hosts_fail_setting(text, size, "is not a possible number of hosts");
    for (int block = 0, r = 0; block < blocks; block++)
        for (int end = r + size / blocks + (block < size % blocks); r < end; r++) out[r] = block;
    return TUTTI_OK;
}
tutti_status hosts_parse_setting(const char *text, int size, int *out)
{
    const char *at = text;
    memset(out, 0, (size_t)size * sizeof *out);
    if (!*text) return TUTTI_OK;
    if (!strchr(text, ',')) return hosts_parse_blocks(text, size, out);
    for (int r = 0; r < size; r++)
        if (!hosts_read_number(&at, size, &out[r]))
            return hosts_fail_setting(text, size, "does not name a host for each rank");
    return *at ? hosts_fail_setting(text, size, "names more hosts than there are ranks") : TUTTI_OK;
}
uint32_t hosts_setting_number(const char *text, int size)
{
    /* The number is a FNV-1a hash. */
    uint32_t number = 2166136261u;
    if (!*text) return 0;
    for (const char *c = text; *c; c++) number = (number ^ (unsigned char)*c) * 16777619u;
    return (number ^ (uint32_t)size) * 16777619u | 1;
}
/* ---- from the members' records ---- */
/* A rank and its host. Sorting brings the ranks of one host together. */
struct rank_host { unsigned char token[16]; int host, rank; };
/* Orders by token, then by host: 0 for ranks of one host. */
static int rank_host_compare(const struct rank_host *a, const struct rank_host *b)
{
    int order = memcmp(a->token, b->token, sizeof a->token);
    return order ? order : (a->host > b->host) - (a->host < b->host);
}
static int rank_host_qsort_compare(const void *a, const void *b) { return rank_host_compare(a, b); }
/* Checks the number of the host that rank r reports, and that simulated hosts are on one real host. */
static tutti_status hosts_check_member(const struct group *group, int r)
{
    const struct member *first = &group->members[0], *m = &group->members[r];
    if (m->host < 0 || m->host >= MOST_HOSTS)
        return status_fail(TUTTI_MISMATCH, "rank %d of %s reports that it is on host %d; the limit is %d hosts", r,
            group->name, m->host, MOST_HOSTS);
    if (!m->simulates || memcmp(m->host_token, first->host_token, sizeof m->host_token) == 0) return TUTTI_OK;
    return status_fail(TUTTI_INVALID_ARGUMENT,
        "TUTTI_HOSTS simulates hosts for %s, but rank 0 (process %llu on %.40s) and rank %d (process %llu on %.40s) "
        "are on different hosts: unset it",
        group->name, (unsigned long long)first->identity.pid, first->identity.host, r,
        (unsigned long long)m->identity.pid, m->identity.host);
}
/* Renumbers the hosts in out[rank] in the order of their lowest ranks. The tokens are random, but sums must have the
   same order in each run. `spare` has room for `size` entries. */
static void hosts_number_by_rank(int size, struct rank_host *spare, int *out)
{
    /* spare[i].host is the new number of host i. */
    for (int i = 0; i < size; i++) spare[i].host = -1;
    for (int r = 0, hosts = 0; r < size; r++) {
        int *next = &spare[out[r]].host;
        if (*next < 0) *next = hosts++;
        out[r] = *next;
    }
}
/* Sets out[rank] to the host of each rank, numbered from 0. The records have the job's numbers, of which a group may
   have only some. */
static tutti_status hosts_number_all(const struct group *group, int *out)
{
    for (int r = 0; r < group->size; r++) TRY(hosts_check_member(group, r));
    struct rank_host *hosts = memory_alloc_zeroed((size_t)group->size, sizeof *hosts);
    if (!hosts) return status_fail(TUTTI_NO_MEMORY, "no memory for the hosts of %d ranks", group->size);
    for (int r = 0; r < group->size; r++) {
        hosts[r].host = group->members[r].host;
        hosts[r].rank = r;
        memcpy(hosts[r].token, group->members[r].host_token, sizeof hosts[r].token);
    }
    qsort(hosts, (size_t)group->size, sizeof *hosts, rank_host_qsort_compare);
    for (int i = 0, host = 0; i < group->size; i++) {
        if (i && rank_host_compare(&hosts[i - 1], &hosts[i]) != 0) host++;
        out[hosts[i].rank] = host;
    }
    hosts_number_by_rank(group->size, hosts, out);
    free(hosts);
    return TUTTI_OK;
}
tutti_status hosts_create_layout(const struct group *group, struct layout **out)
{
    int *hosts = memory_alloc_zeroed((size_t)group->size, sizeof *hosts);
    if (!hosts) return status_fail(TUTTI_NO_MEMORY, "no memory for the hosts of %d ranks", group->size);
    tutti_status status = hosts_number_all(group, hosts);
    if (status == TUTTI_OK) status = layout_create(hosts, group->size, out);
    free(hosts);
    return status;
}
