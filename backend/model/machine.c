/* The parameters that this process has, by distance of the cores. */
#include "backend/model/machine.h"
#include <math.h>
#include <pthread.h>

int distance_of_line_time(double line_ns)
{
    if (!(line_ns > 0)) return 0;
    double half_octaves = floor(2 * log2(line_ns));
    return half_octaves < 1 ? 1 : half_octaves < DISTANCES ? (int)half_octaves : DISTANCES - 1;
}

enum { FOLDER_BYTES = 1024 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* The parameters of each distance, if they are known. */
static struct machine known[DISTANCES];
static bool is_known[DISTANCES];
/* The distance whose parameters were used last; -1: unknown so far. */
static int latest = -1;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A fork waits for the lock, so that the child finds it free. */
static void machine_before_fork(void) { pthread_mutex_lock(&lock); }
static void machine_after_fork(void) { pthread_mutex_unlock(&lock); }
static void machine_register_fork_handlers(void)
{
    pthread_atfork(machine_before_fork, machine_after_fork, machine_after_fork);
}
/* Locks the values of this process. The first call registers the fork handlers. */
static void machine_lock_values(void)
{
    pthread_once(&once, machine_register_fork_handlers);
    pthread_mutex_lock(&lock);
}
/* True if known[distance] has parameters. Reads them from disk if this process has none. The caller has the lock. */
static bool machine_find_locked(int distance)
{
    char folder[FOLDER_BYTES], identity[IDENTITY_BYTES];
    if (!is_known[distance] && distance && machine_file_folder(folder, sizeof folder)) {
        machine_format_identity(distance, identity);
        is_known[distance] = machine_file_read(folder, identity, &known[distance]);
    }
    if (is_known[distance]) latest = distance;
    return is_known[distance];
}
/* True if known[latest] has parameters. Looks at all distances if none were used before. The caller has the lock. */
static bool machine_find_any_locked(void)
{
    for (int distance = 0; latest < 0 && distance < DISTANCES; distance++) machine_find_locked(distance);
    return latest >= 0;
}
bool machine_find_parameters(int distance, struct machine *out)
{
    machine_lock_values();
    bool found = distance ? machine_find_locked(distance) : machine_find_any_locked();
    if (found) *out = known[latest];
    pthread_mutex_unlock(&lock);
    return found;
}
void machine_store_parameters(int distance, const struct machine *parameters, bool to_disk)
{
    char folder[FOLDER_BYTES], identity[IDENTITY_BYTES];
    machine_lock_values();
    if (!is_known[distance]) known[distance] = *parameters;
    is_known[distance] = true;
    latest = distance;
    pthread_mutex_unlock(&lock);
    if (!to_disk || distance == 0 || !machine_file_folder(folder, sizeof folder)) return;
    machine_format_identity(distance, identity);
    machine_file_write(folder, identity, parameters);
}
struct machine machine_get_or_measure(machine_copy *stream)
{
    struct machine machine;
    if (!machine_find_parameters(0, &machine)) machine_probe(stream, NULL, &machine);
    return machine;
}
