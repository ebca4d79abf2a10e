/* Fabric ops and their memory. Freed ops are kept by the power of two of their room, so that a steady load needs no
   allocation. */
#include "backend/base/memory.h"
#include "backend/transports/fabric/fabric_transport.h"
#include <stdlib.h>

enum { SMALLEST_ROOM = 256 };

static int fabric_op_size_class(size_t room)
{
    int class = 0;
    while (class < FABRIC_OP_CLASSES && (size_t)SMALLEST_ROOM << class < room) class++;
    return class;
}
struct fabric_op *fabric_op_new(struct fabric *fabric, size_t room)
{
    int class = fabric_op_size_class(room);
    bool kept = class < FABRIC_OP_CLASSES;
    struct fabric_op *f = kept ? fabric->spare[class] : NULL;
    size_t before = size_round_up(sizeof *f, 64);
    if (f) fabric->spare[class] = f->next;
    else if (!(f = memory_alloc_aligned(before + (kept ? (size_t)SMALLEST_ROOM << class : room)))) return NULL;
    *f = (struct fabric_op){ .class = class, .room = (unsigned char *)f + before };
    return f;
}
void fabric_op_free(struct fabric *fabric, struct fabric_op *f)
{
    if (f->class == FABRIC_OP_CLASSES) {
        free(f);
        return;
    }
    f->next = fabric->spare[f->class];
    fabric->spare[f->class] = f;
}
void fabric_op_add(struct fabric_op *f, struct fabric_op **list)
{
    f->next = *list;
    if (f->next) f->next->at = &f->next;
    f->at = list;
    *list = f;
}
void fabric_op_remove(struct fabric_op *f)
{
    if (!f->at) return;
    *f->at = f->next;
    if (f->next) f->next->at = f->at;
    f->at = NULL;
}

/* A fabric that finishes may leave orphans that never complete, so they are freed here. */
void fabric_ops_free_all(struct fabric *fabric)
{
    for (struct fabric_op *f; (f = fabric->orphans) != NULL; fabric_op_free(fabric, f)) fabric_op_remove(f);
    for (int class = 0; class < FABRIC_OP_CLASSES; class++)
        for (struct fabric_op *f; (f = fabric->spare[class]) != NULL; free(f)) fabric->spare[class] = f->next;
}
