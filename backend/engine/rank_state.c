#include "backend/engine/rank_state.h"
#include "backend/base/clock.h"
#include "backend/base/text.h"
#include "backend/engine/comm.h"
#include <string.h>

/* ---- values that others are writing ---- */
/* Reads the number of the last collective, and the kind of the operations that the driver has open: collectives before
   messages before those of windows. It does so without the driver's role. Each field is one word, and only shown. */
__attribute__((no_sanitize("thread"))) static enum activity_kind comm_peek_open_kind(const tutti_comm *comm,
    uint64_t *calls)
{
    const volatile struct run_queue *queue = &comm->run_queue;
    struct operation *volatile const *messages = &comm->messages.open;
    struct operation *volatile const *windows = &comm->windows.open;
    *calls = queue->sequence;
    return queue->head ? ACTIVITY_COLLECTIVE
        : *messages    ? ACTIVITY_MESSAGE
        : *windows     ? ACTIVITY_WINDOW
                       : ACTIVITY_NONE;
}
__attribute__((no_sanitize("thread"))) bool declaration_peek_newest(const struct segment *segment, int index,
    struct declaration *out)
{
    const volatile struct declaration *newest = NULL;
    for (uint64_t i = 0; i < DECLARATIONS; i++) {
        const volatile struct declaration *d = segment_declaration(segment, index, i);
        if (d->sequence && (!newest || d->sequence > newest->sequence)) newest = d;
    }
    if (!newest) return false;
    volatile unsigned char *to = (volatile unsigned char *)out;
    const volatile unsigned char *from = (const volatile unsigned char *)newest;
    for (size_t i = 0; i < sizeof *out; i++) to[i] = from[i];
    return true;
}
/* Reads the operation for which a thread waits, else one that is open. */
static void rank_state_read_open(const tutti_comm *comm, struct rank_state *state)
{
    const struct activity *activity = &comm->activity;
    enum activity_kind open = comm_peek_open_kind(comm, &state->calls);
    state->kind = open;
    state->age_ms = -1;
    if (!atomic_load_explicit(&activity->operation, memory_order_acquire)) return;
    enum activity_kind awaited = (enum activity_kind)atomic_load(&activity->kind);
    int64_t age_ms = clock_ms() - atomic_load(&activity->since_ms);
    int peer = atomic_load(&activity->peer);
    if (awaited != ACTIVITY_NONE) state->kind = awaited;
    state->age_ms = age_ms > 0 ? age_ms : 0;
    state->is_send = atomic_load(&activity->is_send);
    state->peer = peer < 0 ? -1 : peer;
    state->tag = atomic_load(&activity->tag);
    state->bytes = atomic_load(&activity->bytes);
}
void rank_state_read(const tutti_comm *comm, struct rank_state *out)
{
    const struct group *group = &comm->group;
    struct declaration call;
    memset(out, 0, sizeof *out);
    rank_state_read_open(comm, out);
    if (declaration_peek_newest(group->segment, group_index_of_rank(group, group->rank), &call))
        error_text_of_call(&call, out->call, sizeof out->call);
    if (atomic_load_explicit(&comm->outcome.failed, memory_order_acquire))
        memcpy(out->failure, comm->outcome.detail, strnlen(comm->outcome.detail, sizeof out->failure - 1));
}
bool rank_state_check(struct rank_state *state, int size)
{
    text_make_printable(state->call, sizeof state->call);
    text_make_printable(state->failure, sizeof state->failure);
    text_make_printable(state->place, sizeof state->place);
    text_make_printable(state->waits_in, sizeof state->waits_in);
    return state->kind <= ACTIVITY_WINDOW && state->peer >= -1 && state->peer < size && state->age_ms >= -1;
}

/* ---- as JSON ---- */
/* Appends the message or the operation of a window for which a thread waits. */
static void rank_state_append_message(struct text_buffer *text, const struct rank_state *state)
{
    bool is_message = state->kind == ACTIVITY_MESSAGE;
    text_append_pair(text, "kind", !is_message ? "window" : state->is_send ? "send" : "receive", ", ");
    if (state->peer >= 0) text_append(text, "\"peer\": %d, ", state->peer);
    else text_append(text, "\"peer\": null, ");
    if (is_message) text_append(text, "\"tag\": %u, \"bytes\": %llu, ", state->tag, (unsigned long long)state->bytes);
}
void rank_state_append_open(struct text_buffer *text, const struct rank_state *state)
{
    static const char *const names[] = {
        [ACTIVITY_COLLECTIVE] = "collective", [ACTIVITY_MESSAGE] = "message", [ACTIVITY_WINDOW] = "window"
    };
    bool is_awaited = state->age_ms >= 0;
    if (state->kind == ACTIVITY_NONE) text_append(text, "\"open\": null, ");
    else {
        text_append(text, "\"open\": {");
        if (is_awaited && state->kind != ACTIVITY_COLLECTIVE) rank_state_append_message(text, state);
        else text_append_pair(text, "kind", names[state->kind], ", ");
        if (is_awaited) text_append_seconds(text, "age_s", state->age_ms);
        else text_append(text, "\"age_s\": null");
        text_append(text, "}, ");
    }
}
