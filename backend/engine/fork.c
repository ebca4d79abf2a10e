/* Resets, in the child of a fork, process-wide state that the parent's threads were using. */
#include "backend/engine/fork.h"
#include "backend/engine/comm_list.h"
#include "backend/engine/operation.h"
#include "backend/engine/progress_list.h"
#include "backend/engine/progress_thread.h"
#include "backend/engine/stream_thread.h"
#include <pthread.h>

static unsigned generation = 1;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void process_reset_after_fork(void)
{
    generation++;
    progress_list_reset_after_fork();
    progress_thread_reset_after_fork();
    stream_thread_reset_after_fork();
    operations_reset_after_fork();
    comm_list_reset_after_fork();
}
static void process_register_fork_handler(void) { pthread_atfork(NULL, NULL, process_reset_after_fork); }
void process_watch_forks(void) { pthread_once(&once, process_register_fork_handler); }
unsigned process_generation(void) { return generation; }
