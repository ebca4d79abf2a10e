/* Each task has a thread of its own, which ends with it. */
#include "backend/engine/stream_close.h"
#include "backend/base/thread.h"

static void *stream_comm_disconnect_main(void *argument)
{
    struct stream_comm *streams = argument;
    cuda_thread_relax_captures();
    stream_site_disconnect_peers(streams->site);
    stream_comm_release(streams);
    return NULL;
}
static void *stream_comm_close_main(void *argument)
{
    struct stream_comm *streams = argument;
    cuda_thread_relax_captures();
    stream_comm_close(streams);
    stream_comm_release(streams);
    return NULL;
}
/* Runs a task on a thread of its own, or on this one if no thread can be started. */
static void stream_task_start(void *(*task)(void *), struct stream_comm *streams)
{
    pthread_t thread;
    if (thread_start_blocking_signals(&thread, task, streams)) task(streams);
    else pthread_detach(thread);
}
void stream_comm_start_disconnect(struct stream_comm *streams)
{
    atomic_fetch_add(&streams->holders, 1);
    stream_task_start(stream_comm_disconnect_main, streams);
}
void stream_comm_start_close(struct stream_comm *streams) { stream_task_start(stream_comm_close_main, streams); }
