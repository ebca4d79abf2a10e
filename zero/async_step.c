/* One lock guards the state. The thread sleeps until there is work. */
#include "zero/async_step.h"
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/thread.h"
#include <stdio.h>
#include <stdlib.h>

/* ---- the thread ---- */
/* Runs the step without the lock, stores its first error, and wakes the waiters. Called with the lock. */
static void async_step_run_work(struct async_step *async)
{
    pthread_mutex_unlock(&async->lock);
    tutti_status status = async->work(async->context);
    pthread_mutex_lock(&async->lock);
    if (status != TUTTI_OK && async->status == TUTTI_OK) {
        async->status = status;
        snprintf(async->why, sizeof async->why, "%s", status_detail());
    }
    async->busy = false;
    pthread_cond_broadcast(&async->changed);
}
/* The thread: runs each step that async_step_start_work asks for, until `stop`. */
static void *async_step_thread_main(void *async)
{
    struct async_step *t = async;
    pthread_mutex_lock(&t->lock);
    while (!t->stop) {
        if (t->busy) async_step_run_work(t);
        else pthread_cond_wait(&t->changed, &t->lock);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}
/* Starts the thread. Returns 0 or the error number of pthread_create. */
static int async_step_start_thread(struct async_step *async)
{
    int refused = thread_start_blocking_signals(&async->thread, async_step_thread_main, async);
    if (!refused) pthread_setname_np(async->thread, "tutti-zero");
    return refused;
}
static void async_step_free(struct async_step *async)
{
    pthread_mutex_destroy(&async->lock);
    pthread_cond_destroy(&async->changed);
    free(async->steps);
    free(async);
}
tutti_status async_step_create(int units, tutti_status (*work)(void *), void *context, struct async_step **out)
{
    struct async_step *async = memory_alloc_zeroed(1, sizeof *async);
    uint64_t *steps = memory_alloc_zeroed((size_t)units, sizeof *steps);
    if (!async || !steps) {
        free(async);
        free(steps);
        return status_fail(TUTTI_NO_MEMORY, "zero: no memory for %d units", units);
    }
    *async = (struct async_step){ .work = work, .context = context, .steps = steps };
    pthread_mutex_init(&async->lock, NULL);
    clock_condition_init(&async->changed);
    int refused = async_step_start_thread(async);
    if (refused) {
        async_step_free(async);
        return status_fail(TUTTI_SYSTEM,
            "zero: cannot start the thread that updates parameters in the background: pthread_create returned error "
            "%d (limit on threads? see ulimit -u)",
            refused);
    }
    *out = async;
    return TUTTI_OK;
}
void async_step_destroy(struct async_step *async)
{
    if (!async) return;
    pthread_mutex_lock(&async->lock);
    async->stop = true;
    pthread_cond_broadcast(&async->changed);
    pthread_mutex_unlock(&async->lock);
    pthread_join(async->thread, NULL);
    async_step_free(async);
}

/* ---- the caller ---- */
void async_step_start_work(struct async_step *async)
{
    pthread_mutex_lock(&async->lock);
    async->busy = true;
    pthread_cond_broadcast(&async->changed);
    pthread_mutex_unlock(&async->lock);
}
void async_step_complete_unit(struct async_step *async, int unit, uint64_t steps)
{
    pthread_mutex_lock(&async->lock);
    async->steps[unit] = steps;
    pthread_cond_broadcast(&async->changed);
    pthread_mutex_unlock(&async->lock);
}
/* Returns the first error of the work so far, with its text, or TUTTI_OK. */
static tutti_status async_step_result(const struct async_step *async)
{
    return async->status == TUTTI_OK ? TUTTI_OK : status_repeat(async->status, async->why);
}
/* Waits for the unit and counts the time. Called with the lock. */
static void async_step_await_unit_locked(struct async_step *async, int unit, uint64_t steps)
{
    int64_t began_ns = clock_ns();
    while (async->busy && async->steps[unit] < steps) pthread_cond_wait(&async->changed, &async->lock);
    async->waited_ns += (uint64_t)(clock_ns() - began_ns);
}
tutti_status async_step_await_unit(struct async_step *async, int unit, uint64_t steps)
{
    if (!async) return TUTTI_OK;
    pthread_mutex_lock(&async->lock);
    if (async->busy && async->steps[unit] < steps) async_step_await_unit_locked(async, unit, steps);
    tutti_status status = async_step_result(async);
    pthread_mutex_unlock(&async->lock);
    return status;
}
tutti_status async_step_await_end(struct async_step *async)
{
    if (!async) return TUTTI_OK;
    pthread_mutex_lock(&async->lock);
    while (async->busy) pthread_cond_wait(&async->changed, &async->lock);
    tutti_status status = async_step_result(async);
    pthread_mutex_unlock(&async->lock);
    return status;
}
bool async_step_await_until(struct async_step *async, int64_t until_ms)
{
    struct timespec until = { until_ms / 1000, until_ms % 1000 * 1000000 };
    if (!async) return true;
    pthread_mutex_lock(&async->lock);
    while (async->busy && clock_ms() < until_ms) pthread_cond_timedwait(&async->changed, &async->lock, &until);
    bool over = !async->busy;
    pthread_mutex_unlock(&async->lock);
    return over;
}
