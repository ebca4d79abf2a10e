/* A new fabric becomes one more entry of `all_fabrics`. */
#include "backend/transports/fabrics.h"
#include "backend/links/tls.h"
#include "backend/transports/tcp/tcp.h"
#include "backend/transports/ucx/ucx.h"
#include "backend/transports/verbs/verbs.h"
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static struct fabric *const all_fabrics[] = { &ucx_fabric, &verbs_fabric, &tcp_fabric };
enum { FABRIC_COUNT = sizeof all_fabrics / sizeof *all_fabrics };
_Static_assert((int)FABRIC_COUNT <= (int)NETWORKS_AT_MOST, "a router has room for all");

struct fabric *fabric_by_number(int number)
{
    return number >= 0 && number < FABRIC_COUNT ? all_fabrics[number] : NULL;
}
const char *fabric_name(int number)
{
    const struct fabric *fabric = fabric_by_number(number);
    return fabric ? fabric->operations->name : NULL;
}

/* ---- the default ---- */
/* Returns whether the RDMA port with the state file `path` is active. The kernel then writes "4: ACTIVE" to it. */
static bool rdma_port_is_active(const char *path)
{
    int state = 0;
    FILE *file = fopen(path, "r");
    if (!file) return false;
    bool is_parsed = fscanf(file, "%d", &state) == 1;
    fclose(file);
    return is_parsed && state == 4;
}
int fabric_find_default(const char *devices)
{
    char pattern[512];
    glob_t ports;
    bool active = false;
    snprintf(pattern, sizeof pattern, "%s/*/ports/*/state", devices);
    if (glob(pattern, 0, NULL, &ports) == 0) {
        for (size_t i = 0; i < ports.gl_pathc && !active; i++) active = rdma_port_is_active(ports.gl_pathv[i]);
        globfree(&ports);
    }
    return fabric_number_by_name(active ? "ucx" : "tcp");
}
static int default_number;
/* Sets default_number, once per process: to tcp if encryption is required, because only tcp can be encrypted. */
static void fabrics_choose_default(void)
{
    default_number =
        encryption_is_required() ? fabric_number_by_name("tcp") : fabric_find_default("/sys/class/infiniband");
}
int fabric_number_by_name(const char *name)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    for (int i = 0; i < FABRIC_COUNT; i++)
        if (strcmp(fabric_name(i), name) == 0) return i;
    if (*name) return FABRIC_UNKNOWN;
    pthread_once(&once, fabrics_choose_default);
    return default_number;
}

/* ---- several ---- */
unsigned fabrics_parse_names(const char *names, char unknown[FABRIC_TEXT_BYTES])
{
    unsigned set = *names ? 0 : 1u << fabric_number_by_name(names);
    for (const char *at = names; *at;) {
        char word[FABRIC_TEXT_BYTES];
        size_t length = strcspn(at, ",");
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        int number = *word ? fabric_number_by_name(word) : FABRIC_UNKNOWN;
        if (number == FABRIC_UNKNOWN) {
            if (unknown) snprintf(unknown, FABRIC_TEXT_BYTES, "%s", word);
            return 0;
        }
        set |= 1u << number;
        at += length + (at[length] == ',');
    }
    return set;
}
void fabrics_print_names(unsigned set, char out[FABRIC_TEXT_BYTES])
{
    size_t used = 0;
    out[0] = 0;
    for (int k = 0; k < FABRIC_COUNT; k++)
        if (set >> k & 1)
            used += (size_t)snprintf(out + used, FABRIC_TEXT_BYTES - used, "%s%s", used ? " and " : "", fabric_name(k));
}
