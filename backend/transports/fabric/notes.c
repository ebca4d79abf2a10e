/* Messages that came while their port did not poll, and those of communicators that are not there yet. */
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/transports/fabric/port.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_EARLY = 4096 };

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
    if (note->parked) fabric->operations->release(fabric, note->parked);
    free(note);
}
struct note *note_new(const struct header *header, const void *data, size_t bytes, bool announced)
{
    struct note *note = memory_zeroed(1, sizeof *note + (announced ? 0 : bytes));
    if (!note) return NULL;
    note->header = *header;
    note->announced = announced;
    note->bytes = bytes;
    if (announced) note->parked = (void *)(uintptr_t)data;
    else if (bytes) memcpy(note->data, data, bytes);
    return note;
}

/* Early ones are of a communicator that this rank is about to join; if it never does they make room for others. */
static void keep_early(struct fabric *fabric, struct note *note)
{
    if (fabric->early.count == MOST_EARLY) {
        LOG(WARN, "%d messages came for groups that were not joined here; the oldest is dropped", MOST_EARLY);
        note_free(fabric, notes_pop(&fabric->early));
    }
    notes_push(&fabric->early, note);
}
static bool keep_note(struct fabric *fabric, struct port *port, const struct header *header, void *data, size_t bytes,
    bool announced)
{
    if (!port && port_was_closed(fabric, header->comm, header->to)) return false;
    struct note *note = note_new(header, data, bytes, announced);
    if (note && port) port_note(port, note);
    else if (note) keep_early(fabric, note);
    else if (port) port_starve(port);
    return note && announced;
}
bool fabric_hear(struct fabric *fabric, const struct header *header, void *data, size_t bytes, bool announced)
{
    struct port *port = port_find(fabric, header->comm, header->to);
    if (port && port == fabric->polling) return port_hear(port, header, data, bytes, announced);
    return keep_note(fabric, port, header, data, bytes, announced);
}
