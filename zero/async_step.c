/* One lock guards the state. The thread sleeps until there is work. */
#include "zero/async_step.h"
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the thread ---- */
static void async_step_run_work(struct async_step *t)
{
    pthread_mutex_unlock(&t->lock);
    tutti_status status = t->work(t->context);
    pthread_mutex_lock(&t->lock);
    if (status != TUTTI_OK && t->status == TUTTI_OK) {
        t->status = status;
        snprintf(t->why, sizeof t->why, "%s", status_detail());
    }
    t->busy = false;
    pthread_cond_broadcast(&t->changed);
}
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
/* Returns 0 or an error number. */
static int async_step_start_thread(struct async_step *t)
{
    sigset_t all, before;
    sigfillset(&all);
    /* The program's own threads handle all signals. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int refused = pthread_create(&t->thread, NULL, async_step_thread_main, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!refused) pthread_setname_np(t->thread, "tutti-zero");
    return refused;
}
static void async_step_free(struct async_step *t)
{
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->changed);
    free(t->steps);
    free(t);
}
tutti_status async_step_create(int units, tutti_status (*work)(void *), void *context, struct async_step **out)
{
    struct async_step *t = memory_alloc_zeroed(1, sizeof *t);
    uint64_t *steps = memory_alloc_zeroed((size_t)units, sizeof *steps);
    if (!t || !steps) {
        free(t);
        free(steps);
        return status_fail(TUTTI_NO_MEMORY, "zero: no memory for %d units", units);
    }
    *t = (struct async_step){ .work = work, .context = context, .steps = steps };
    pthread_mutex_init(&t->lock, NULL);
    clock_condition_init(&t->changed);
    int refused = async_step_start_thread(t);
    if (refused) {
        async_step_free(t);
        return status_fail(TUTTI_SYSTEM,
            "zero: cannot start the thread that updates parameters in the background: pthread_create returned error "
            "%d (limit on threads? see ulimit -u)",
            refused);
    }
    *out = t;
    return TUTTI_OK;
}
void async_step_destroy(struct async_step *t)
{
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
    async_step_free(t);
}

/* ---- the caller ---- */
void async_step_start_work(struct async_step *t)
{
    pthread_mutex_lock(&t->lock);
    t->busy = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}
void async_step_complete_unit(struct async_step *t, int unit, uint64_t steps)
{
    pthread_mutex_lock(&t->lock);
    t->steps[unit] = steps;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}
static tutti_status async_step_result(const struct async_step *t)
{
    return t->status == TUTTI_OK ? TUTTI_OK : status_repeat(t->status, t->why);
}
static void async_step_await_unit_locked(struct async_step *t, int unit, uint64_t steps)
{
    int64_t began_ns = clock_ns();
    while (t->busy && t->steps[unit] < steps) pthread_cond_wait(&t->changed, &t->lock);
    t->waited_ns += (uint64_t)(clock_ns() - began_ns);
}
tutti_status async_step_await_unit(struct async_step *t, int unit, uint64_t steps)
{
    if (!t) return TUTTI_OK;
    pthread_mutex_lock(&t->lock);
    if (t->busy && t->steps[unit] < steps) async_step_await_unit_locked(t, unit, steps);
    tutti_status status = async_step_result(t);
    pthread_mutex_unlock(&t->lock);
    return status;
}
tutti_status async_step_await_end(struct async_step *t)
{
    if (!t) return TUTTI_OK;
    pthread_mutex_lock(&t->lock);
    while (t->busy) pthread_cond_wait(&t->changed, &t->lock);
    tutti_status status = async_step_result(t);
    pthread_mutex_unlock(&t->lock);
    return status;
}
bool async_step_await_until(struct async_step *t, int64_t until_ms)
{
    struct timespec until = { until_ms / 1000, until_ms % 1000 * 1000000 };
    if (!t) return true;
    pthread_mutex_lock(&t->lock);
    while (t->busy && clock_ms() < until_ms) pthread_cond_timedwait(&t->changed, &t->lock, &until);
    bool over = !t->busy;
    pthread_mutex_unlock(&t->lock);
    return over;
}
