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
    struct fabric_op *op = kept ? fabric->spare[class] : NULL;
    size_t before = size_round_up(sizeof *op, 64);
    if (op) fabric->spare[class] = op->next;
    else if (!(op = memory_alloc_aligned(before + (kept ? (size_t)SMALLEST_ROOM << class : room)))) return NULL;
    *op = (struct fabric_op){ .class = class, .room = (unsigned char *)op + before };
    return op;
}
/* Keeps the op for reuse, by its size class; the largest ones are freed. */
void fabric_op_free(struct fabric *fabric, struct fabric_op *op)
{
    if (op->class == FABRIC_OP_CLASSES) {
        free(op);
        return;
    }
    op->next = fabric->spare[op->class];
    fabric->spare[op->class] = op;
}
void fabric_op_add(struct fabric_op *op, struct fabric_op **list)
{
    op->next = *list;
    if (op->next) op->next->at = &op->next;
    op->at = list;
    *list = op;
}
void fabric_op_remove(struct fabric_op *op)
{
    if (!op->at) return;
    *op->at = op->next;
    if (op->next) op->next->at = op->at;
    op->at = NULL;
}

/* A fabric that finishes may leave orphans that never complete, so they are freed here. */
void fabric_ops_free_all(struct fabric *fabric)
{
    for (struct fabric_op *op; (op = fabric->orphans) != NULL; fabric_op_free(fabric, op)) fabric_op_remove(op);
    for (int class = 0; class < FABRIC_OP_CLASSES; class++)
        for (struct fabric_op *op; (op = fabric->spare[class]) != NULL; free(op)) fabric->spare[class] = op->next;
}
