#include "backend/engine/snapshot.h"
#include "backend/base/clock.h"
#include "backend/base/sha256.h"
#include "backend/base/text_buffer.h"
#include "backend/engine/comm.h"
#include "backend/engine/error_text.h"
#include <string.h>
#include <unistd.h>

enum { SNAPSHOT_FORMAT = 1, ID_BYTES = 8 };

/* ---- values that others are writing ---- */
/* The operations that the driver of a communicator has open, and the number of its last collective. */
struct open_work { uint64_t calls; bool has_collectives, has_messages, has_window_operations; };
/* Reads fields of the driver without its role. Each is one word, and only shown. */
__attribute__((no_sanitize("thread"))) static struct open_work comm_peek_work(const tutti_comm *comm)
{
    const volatile struct run_queue *queue = &comm->run_queue;
    struct operation *volatile const *messages = &comm->messages.open;
    struct operation *volatile const *windows = &comm->windows.open;
    return (struct open_work){ queue->sequence, queue->head != NULL, *messages != NULL, *windows != NULL };
}
/* Copies the newest declaration of a local rank. Returns false if it has called no collective. The copy may be mixed of
   two calls if the rank is not waiting. */
__attribute__((no_sanitize("thread"))) static bool declaration_peek_newest(const struct segment *segment, int index,
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

/* ---- one communicator ---- */
/* Appends "name": milliseconds as seconds, in any locale. */
static void text_append_seconds(struct text_buffer *text, const char *name, int64_t ms)
{
    if (ms < 0) ms = 0;
    text_append(text, "\"%s\": %lld.%03lld", name, (long long)(ms / 1000), (long long)(ms % 1000));
}
/* Appends "name": seconds since that clock_ms(). */
static void text_append_age(struct text_buffer *text, const char *name, int64_t since_ms)
{
    text_append_seconds(text, name, clock_ms() - since_ms);
}
static void text_append_hex(struct text_buffer *text, const unsigned char *from, int bytes)
{
    for (int i = 0; i < bytes; i++) text_append(text, "%02x", from[i]);
}
/* Appends the id of the group, which is equal in all its processes, and no secret. */
static void text_append_group_id(struct text_buffer *text, const struct group *group)
{
    unsigned char hash[SHA256_BYTES];
    struct sha256 sha;
    sha256_init(&sha);
    sha256_add(&sha, group->members[0].token, sizeof group->members[0].token);
    sha256_finish(&sha, hash);
    text_append(text, "\"id\": \"");
    text_append_hex(text, hash, ID_BYTES);
    text_append(text, "\", ");
}
/* Appends all ranks of the group: process, name of the host, and number of the host in the group. */
static void text_append_members(struct text_buffer *text, const struct group *group)
{
    text_append(text, "\"members\": [");
    for (int r = 0; r < group->size; r++) {
        const struct identity *identity = &group->members[r].identity;
        text_append(text, "%s{\"rank\": %d, \"pid\": %llu, \"host\": %d, \"process\": \"", r ? ", " : "", r,
            (unsigned long long)identity->pid, layout_host(group->layout, r));
        text_append_hex(text, identity->nonce, sizeof identity->nonce);
        text_append(text, "\", ");
        text_append_pair(text, "host_name", identity->host, "}");
    }
    text_append(text, "], ");
}
/* Appends the ranks of this host: the number of the last collective that each has called, and its description. */
static void text_append_ranks_here(struct text_buffer *text, const struct group *group)
{
    char call[ERROR_TEXT_BYTES];
    text_append(text, "\"here\": [");
    for (int i = 0; i < group->segment->ranks; i++) {
        struct declaration declaration = { .sequence = 0 };
        bool has_called = declaration_peek_newest(group->segment, i, &declaration);
        bool has_left = atomic_load(&group_control_at_index(group, i)->departed);
        if (has_called) error_text_of_call(&declaration, call, sizeof call);
        text_append(text, "%s{\"rank\": %d, \"calls\": %llu, \"has_left\": %s, ", i ? ", " : "",
            group_rank_at_index(group, i), (unsigned long long)declaration.sequence, has_left ? "true" : "false");
        text_append_pair(text, "call", has_called ? call : "", "}");
    }
    text_append(text, "], ");
}
/* Appends the message or the operation of a window that the driver waits for. */
static void text_append_message(struct text_buffer *text, const struct activity *activity, bool is_message)
{
    int peer = atomic_load_explicit(&activity->peer, memory_order_relaxed);
    const char *kind = !is_message ? "window" : atomic_load(&activity->is_send) ? "send" : "receive";
    text_append_pair(text, "kind", kind, ", ");
    if (peer >= 0) text_append(text, "\"peer\": %d, ", peer);
    else text_append(text, "\"peer\": null, ");
    if (is_message)
        text_append(text, "\"tag\": %u, \"bytes\": %llu, ", atomic_load(&activity->tag),
            (unsigned long long)atomic_load(&activity->bytes));
}
/* Returns the kind of the operations that are open: collectives before messages before those of windows. */
static enum activity_kind open_work_kind(const struct open_work *work)
{
    if (work->has_collectives) return ACTIVITY_COLLECTIVE;
    if (work->has_messages) return ACTIVITY_MESSAGE;
    return work->has_window_operations ? ACTIVITY_WINDOW : ACTIVITY_NONE;
}
/* Appends the operation for which a thread waits, else one that is open, or null. "age_s" is null if no thread waits
   for it. */
static void text_append_activity(struct text_buffer *text, const tutti_comm *comm, const struct open_work *work)
{
    static const char *const names[] = {
        [ACTIVITY_COLLECTIVE] = "collective", [ACTIVITY_MESSAGE] = "message", [ACTIVITY_WINDOW] = "window"
    };
    const struct activity *activity = &comm->activity;
    bool is_awaited = atomic_load_explicit(&activity->operation, memory_order_acquire);
    enum activity_kind awaited = (enum activity_kind)atomic_load(&activity->kind);
    enum activity_kind kind = is_awaited && awaited != ACTIVITY_NONE ? awaited : open_work_kind(work);
    if (kind == ACTIVITY_NONE) { text_append(text, "\"open\": null, "); return; }
    text_append(text, "\"open\": {");
    if (is_awaited && kind != ACTIVITY_COLLECTIVE) text_append_message(text, activity, kind == ACTIVITY_MESSAGE);
    else text_append_pair(text, "kind", names[kind], ", ");
    if (is_awaited) text_append_age(text, "age_s", atomic_load(&activity->since_ms));
    else text_append(text, "\"age_s\": null");
    text_append(text, "}, ");
}
/* Appends what is known of a group that has formed. */
static void text_append_formed_group(struct text_buffer *text, const tutti_comm *comm)
{
    const struct group *group = &comm->group;
    struct open_work work = comm_peek_work(comm);
    bool has_failed = atomic_load_explicit(&comm->outcome.failed, memory_order_acquire);
    text_append_group_id(text, group);
    text_append_seconds(text, "timeout_s", atomic_load(&comm->timeout_ms));
    text_append(text, ", \"host\": %d, \"calls\": %llu, \"on_streams\": %s, ", group->host,
        (unsigned long long)work.calls, atomic_load(&comm->streams) ? "true" : "false");
    text_append_members(text, group);
    text_append_ranks_here(text, group);
    text_append_activity(text, comm, &work);
    if (has_failed) text_append_pair(text, "failure", comm->outcome.detail, "");
    else text_append(text, "\"failure\": null");
}
struct snapshot { struct text_buffer text; int groups; };
static void snapshot_append_comm(const tutti_comm *comm, void *context)
{
    struct snapshot *snapshot = context;
    struct text_buffer *text = &snapshot->text;
    const struct group *group = &comm->group;
    bool has_joined = atomic_load_explicit(&comm->entry.has_joined, memory_order_acquire);
    bool is_leaving = atomic_load(&comm->leaves_group);
    text_append(text, "%s{", snapshot->groups++ ? ", " : "");
    text_append_pair(text, "name", group->name, ", ");
    text_append_pair(text, "state", !has_joined ? "joining" : is_leaving ? "leaving" : "joined", ", ");
    text_append(text, "\"rank\": %d, \"ranks\": %d, ", group->rank, group->size);
    text_append_age(text, "exists_s", comm->entry.added_ms);
    if (has_joined) {
        text_append(text, ", ");
        text_append_formed_group(text, comm);
    }
    text_append(text, "}");
}
void snapshot_write_process(char *buffer, size_t capacity, size_t *bytes)
{
    char host[64] = "";
    struct snapshot snapshot = { { buffer, capacity, 0 }, 0 };
    struct text_buffer *text = &snapshot.text;
    gethostname(host, sizeof host - 1);
    text_append(text, "{\"format\": %d, ", SNAPSHOT_FORMAT);
    text_append_pair(text, "version", TUTTI_VERSION, ", ");
    text_append(text, "\"pid\": %lld, ", (long long)getpid());
    text_append_pair(text, "host_name", host, ", \"groups\": [");
    comm_list_visit(snapshot_append_comm, &snapshot);
    text_append(text, "]}");
    *bytes = text->length;
}
