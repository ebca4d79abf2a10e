/* What a fabric is at, and the memory for it: rooms are kept by powers of two, so that in the long run nothing is
   allocated. */
#include "backend/base/memory.h"
#include "backend/transports/fabric/port.h"
#include <stdlib.h>

enum { SMALLEST_ROOM = 256 };

static int class_of(size_t room)
{
    int class = 0;
    while (class < FLIGHT_CLASSES && (size_t)SMALLEST_ROOM << class < room) class++;
    return class;
}
struct flight *flight_new(struct fabric *fabric, size_t room)
{
    int class = class_of(room);
    bool kept = class < FLIGHT_CLASSES;
    struct flight *f = kept ? fabric->spare[class] : NULL;
    size_t before = size_round_up(sizeof *f, 64);
    if (f) fabric->spare[class] = f->next;
    else if (!(f = memory_aligned(before + (kept ? (size_t)SMALLEST_ROOM << class : room)))) return NULL;
    *f = (struct flight){ .class = class, .room = (unsigned char *)f + before };
    return f;
}
void flight_free(struct fabric *fabric, struct flight *f)
{
    if (f->class == FLIGHT_CLASSES) {
        free(f);
        return;
    }
    f->next = fabric->spare[f->class];
    fabric->spare[f->class] = f;
}
void flight_enlist(struct flight *f, struct flight **list)
{
    f->next = *list;
    if (f->next) f->next->at = &f->next;
    f->at = list;
    *list = f;
}
void flight_remove(struct flight *f)
{
    if (!f->at) return;
    *f->at = f->next;
    if (f->next) f->next->at = f->at;
    f->at = NULL;
}

/* Of some a fabric may never tell that they have landed. */
void flights_free(struct fabric *fabric)
{
    for (struct flight *f; (f = fabric->orphans) != NULL; flight_free(fabric, f)) flight_remove(f);
    for (int class = 0; class < FLIGHT_CLASSES; class++)
        for (struct flight *f; (f = fabric->spare[class]) != NULL; free(f)) fabric->spare[class] = f->next;
}
void flight_land(struct fabric *fabric, struct flight *f, const char *why)
{
    f->why = why;
    if (why && f->endpoint) endpoint_note_broken(fabric, f->endpoint, why);
    flight_remove(f);
    if (f->owner) port_land(f->owner, f);
    else flight_free(fabric, f);
}
