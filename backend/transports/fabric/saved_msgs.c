/* Messages that came while their port did not poll, and those of communicators that are not there yet. */
#include "backend/base/memory.h"
#include "backend/transports/fabric/port.h"
#include <stdlib.h>
#include <string.h>

void notes_push(struct notes *notes, struct note *note)
{
    note->next = NULL;
    if (notes->last) notes->last->next = note;
    else notes->first = note;
    notes->last = note;
    notes->count++;
}
struct note *notes_pop(struct notes *notes)
{
    struct note *note = notes->first;
    if (!note) return NULL;
    notes->first = note->next;
    if (!notes->first) notes->last = NULL;
    notes->count--;
    return note;
}
void note_free(struct fabric *fabric, struct note *note)
{
    if (note->pending) fabric->operations->release(fabric, note->pending);
    free(note);
}
struct note *note_new(const struct header *header, const void *data, size_t bytes, bool announced)
{
    struct note *note = memory_zeroed(1, sizeof *note + (announced ? 0 : bytes));
    if (!note) return NULL;
    note->header = *header;
    note->announced = announced;
    note->bytes = bytes;
    if (announced) note->pending = (void *)(uintptr_t)data;
    else if (bytes) memcpy(note->data, data, bytes);
    return note;
}

/* ---- of communicators that this rank is about to join ---- */
static void early_count(struct endpoint *from, const struct note *note, int sign)
{
    size_t bytes = sizeof *note + (note->announced ? 0 : note->bytes);
    from->early += sign;
    from->early_bytes = sign > 0 ? from->early_bytes + bytes : from->early_bytes - bytes;
}
struct note *early_pop(struct fabric *fabric)
{
    struct note *note = notes_pop(&fabric->early);
    if (note) early_count(note->from, note, -1);
    return note;
}
void early_push(struct fabric *fabric, struct note *note)
{
    early_count(note->from, note, 1);
    notes_push(&fabric->early, note);
}
void early_forget(struct fabric *fabric, const struct endpoint *from)
{
    for (int left = fabric->early.count; left > 0; left--) {
        struct note *note = early_pop(fabric);
        if (note->from == from) note_free(fabric, note);
        else early_push(fabric, note);
    }
}
static bool keep_early(struct fabric *fabric, struct endpoint *from, const struct header *header, void *data,
    size_t bytes, bool announced)
{
    static const char too_much[] = "its process has sent too many messages to groups that this process has not "
                                   "joined";
    if (port_was_closed(fabric, header->comm, header->to)) return false;
    bool room = from->early < EARLY_MOST && from->early_bytes < EARLY_BYTES;
    struct note *note = room ? note_new(header, data, bytes, announced) : NULL;
    if (!note) {
        endpoint_note_faulty(fabric, from, room ? "no memory for the messages of its process" : too_much);
        return false;
    }
    note->from = from;
    early_push(fabric, note);
    return announced;
}

/* ---- heard ---- */
/* What is wrong with a message, whoever has sent it to whom; NULL: nothing. */
static const char *fault_of(const struct header *h, size_t bytes, bool announced)
{
    if (h->kind >= KINDS) return "its process has sent a message of an unknown kind";
    if (h->kind == MESSAGE && !announced && bytes == h->bytes && bytes <= EAGER_BYTES && !h->id) return NULL;
    bool carries = h->kind == MESSAGE, is_long = announced && bytes >= 1 && bytes <= (h->bytes ? h->bytes : 1);
    bool is_short = !announced && bytes == (carries ? h->bytes : 0) && bytes <= EAGER_BYTES;
    if (announced ? !carries || !is_long : !is_short) return "its process has sent a message of an invalid length";
    return carries && announced != (h->id != 0) ? "its process has sent a message with an invalid id" : NULL;
}
bool fabric_hear(struct fabric *fabric, struct endpoint *from, const struct header *header, void *data, size_t bytes,
    bool announced)
{
    const char *fault = from->faulty ? NULL : fault_of(header, bytes, announced);
    if (fault) endpoint_note_faulty(fabric, from, fault);
    if (from->faulty) return false;
    struct port *port = port_find(fabric, header->comm, header->to);
    return port ? port_hear(port, from, header, data, bytes, announced)
                : keep_early(fabric, from, header, data, bytes, announced);
}
