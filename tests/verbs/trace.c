/* Records the events that a test has asked for. The program's threads and the wire add each event when it happens. */
#include "tests/verbs/machine.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool tracing;
static struct fake_event *events;
static size_t capacity, count;

void fake_trace(struct fake_event *room, size_t most)
{
    pthread_mutex_lock(&lock);
    events = room;
    capacity = room ? most : 0;
    if (room) count = 0;
    atomic_store(&tracing, room != NULL);
    pthread_mutex_unlock(&lock);
}
size_t fake_traced(void)
{
    pthread_mutex_lock(&lock);
    size_t traced = count;
    pthread_mutex_unlock(&lock);
    return traced;
}
/* Adds an event of a reliable connection, if there is room for it. */
static void trace_add(const struct pair *p, struct fake_event event)
{
    if (p->ibv.qp_type != IBV_QPT_RC) return;
    event.qp_num = p->ibv.qp_num;
    pthread_mutex_lock(&lock);
    if (events && count++ < capacity) events[count - 1] = event;
    pthread_mutex_unlock(&lock);
}
void trace_request(enum fake_moment moment, const struct pair *p, const struct work *w, bool rings)
{
    if (!atomic_load_explicit(&tracing, memory_order_relaxed)) return;
    trace_add(p,
        (struct fake_event){ moment, .opcode = w->opcode, .bytes = w->length, .rings = rings, .inlined = w->inlined,
            .signaled = w->flags & IBV_SEND_SIGNALED });
}
void trace_completion(const struct completion *c)
{
    if (!c->pair || !atomic_load_explicit(&tracing, memory_order_relaxed)) return;
    trace_add(c->pair, (struct fake_event){ .moment = c->of_send ? FAKE_POLLED : FAKE_HEARD });
}
