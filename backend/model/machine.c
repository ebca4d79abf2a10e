/* The table of figures, and the ones this process goes by. */
#include "backend/model/machine.h"
#include "backend/base/log.h"
#include <pthread.h>

static const struct machine_row rows[] = {
#define X(name, unit, typical, least, most, help) { #name, unit, help, typical, least, most },
    MACHINE_FIGURES(X)
#undef X
};
enum { ROWS = sizeof rows / sizeof *rows };
_Static_assert(sizeof(struct machine) == ROWS * sizeof(double), "nothing but figures");

int machine_table(const struct machine_row **out)
{
    *out = rows;
    return ROWS;
}
double machine_figure(const struct machine *machine, int row) { return (&machine->l2)[row]; }
void machine_set(struct machine *machine, int row, double figure) { (&machine->l2)[row] = figure; }
struct machine machine_typical(void)
{
    struct machine m;
    for (int i = 0; i < ROWS; i++) machine_set(&m, i, rows[i].typical);
    return m;
}
bool machine_is_sane(const struct machine *machine)
{
    for (int i = 0; i < ROWS; i++) {
        double figure = machine_figure(machine, i);
        if (!(figure >= rows[i].least && figure <= rows[i].most)) return false;        /* NaN is not */
    }
    return true;
}

/* ---- of this process ---- */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct machine current;
static bool is_known;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }
static void prepare(void) { pthread_atfork(before_fork, after_fork, after_fork); }
static struct machine find(machine_copy *stream)
{
    struct machine m;
    char folder[1024], identity[IDENTITY_BYTES];
    bool keep = kept_folder(folder, sizeof folder);
    machine_identity(identity);
    if (keep && kept_read(folder, identity, &m)) return m;
    bool all = machine_probe(stream, &m);
    bool kept = all && keep && kept_write(folder, identity, &m);
    LOG(DEBUG, "the machine was measured%s; the figures are %s%s", all ? "" : " in part",
        kept ? "kept in " : "not kept", kept ? folder : "");
    return m;
}
struct machine machine_get(machine_copy *stream)
{
    pthread_once(&once, prepare);
    pthread_mutex_lock(&lock);
    if (!is_known) current = find(stream);
    is_known = true;
    struct machine m = current;
    pthread_mutex_unlock(&lock);
    return m;
}
void machine_adopt(const struct machine *figures)
{
    pthread_once(&once, prepare);
    pthread_mutex_lock(&lock);
    if (!is_known) current = *figures;
    is_known = true;
    pthread_mutex_unlock(&lock);
}
