/* Fabric ops and their memory. Freed ops are kept by the size of their buffer, so that a steady load needs no
   allocation. */
#include "backend/base/memory.h"
#include "backend/transports/fabric/fabric_transport.h"
#include <stdlib.h>

enum { SMALLEST_BUFFER_BYTES = 256 };

/* Returns the index in fabric->free_ops for buffers of this size. FABRIC_OP_CLASSES: the buffer is too large to
   keep. */
static int fabric_op_size_class(size_t buffer_bytes)
{
    int size_class = 0;
    while (size_class < FABRIC_OP_CLASSES && (size_t)SMALLEST_BUFFER_BYTES << size_class < buffer_bytes) size_class++;
    return size_class;
}
struct fabric_op *fabric_op_new(struct fabric *fabric, size_t buffer_bytes)
{
    int size_class = fabric_op_size_class(buffer_bytes);
    bool is_kept = size_class < FABRIC_OP_CLASSES;
    struct fabric_op *op = is_kept ? fabric->free_ops[size_class] : NULL;
    size_t buffer_offset = size_round_up(sizeof *op, 64);
    if (op) fabric->free_ops[size_class] = op->next;
    else if (!(op = memory_alloc_aligned(buffer_offset
                   + (is_kept ? (size_t)SMALLEST_BUFFER_BYTES << size_class : buffer_bytes))))
        return NULL;
    *op = (struct fabric_op){ .size_class = size_class, .buffer = (unsigned char *)op + buffer_offset };
    return op;
}
/* Keeps the op for reuse, by its size class; the largest ones are freed. */
void fabric_op_free(struct fabric *fabric, struct fabric_op *op)
{
    if (op->size_class == FABRIC_OP_CLASSES) {
        free(op);
        return;
    }
    op->next = fabric->free_ops[op->size_class];
    fabric->free_ops[op->size_class] = op;
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
    for (int size_class = 0; size_class < FABRIC_OP_CLASSES; size_class++)
        for (struct fabric_op *op; (op = fabric->free_ops[size_class]) != NULL; free(op))
            fabric->free_ops[size_class] = op->next;
}
