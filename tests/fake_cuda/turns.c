/* Kernels that run on the thread that launches them: the stream waits for that thread at its place in the queue. So a
   kernel may use what belongs to the thread, and may return results whose size nobody knew at the launch. */
#include "tests/fake_cuda/capture.h"
#include "tests/fake_cuda/streams.h"

struct turn {
    struct operation base;
    struct fake_cuda_launch launch;
    bool has_begun, has_ended;
};
/* For all turns, because the stream frees a turn as soon as it has ended. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void turn_run(struct operation *operation)
{
    struct turn *turn = (struct turn *)operation;
    pthread_mutex_lock(&lock);
    turn->has_begun = true;
    pthread_cond_broadcast(&changed);
    while (!turn->has_ended) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}
VISIBLE CUresult fake_cuda_begin(CUstream handle, const char *name, struct fake_cuda_launch **out)
{
    CUstream stream;
    CUresult result = stream_find(handle, &stream);
    if (!result) result = capture_refuse(stream);
    if (result) return result;
    struct turn *turn = operation_create(sizeof *turn, turn_run, name);
    turn->launch.operation = &turn->base;
    *out = &turn->launch;
    stream_enqueue(stream, &turn->base);
    pthread_mutex_lock(&lock);
    while (!turn->has_begun) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
VISIBLE void fake_cuda_end(struct fake_cuda_launch *launch)
{
    struct turn *turn = (struct turn *)launch->operation;
    pthread_mutex_lock(&lock);
    turn->has_ended = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}
