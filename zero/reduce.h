/* Reduces gradients, from the buffer in which they are written to the sum of each slice on its rank.
 *
 * Each step sums all units once, as their gradients appear. Zeros replace gradients that are missing at the end of the
 * step. Gradients of a unit that is already summed (from another backward pass without hold) stay in its buffer until
 * the step ends, and then all units are summed once more.
 *
 * If all ranks have the same single slice, gradients are summed where they were written, and stay there.
 *
 * In a backward pass a rank waits for another only for a moment, for a buffer. Then it allocates one more buffer, as
 * the other rank may be waiting for this one in another call. */
#pragma once
#include "zero/order.h"
#include "zero/sum.h"

/* A parameter's gradient in its unit's buffer has one of these states. */
enum presence { ABSENT, HELD, READY };
struct gradient_buffer { void *memory; size_t bytes; struct gradient_buffer *next; };
/* Each unit has one of these. */
struct gathering_sum {
    /* `buffer` has the unit's gradients since the last sum, or is NULL. */
    struct gradient_buffer *buffer;
    /* `sent` has the gradients of the sum in flight, or is NULL. */
    struct gradient_buffer *sent;
    /* `kept` has `sum`, if all ranks have the same single slice. */
    struct gradient_buffer *kept;
    /* `sum` is this rank's slice of the step's sum, `more` that of a later round. */
    void *sum, *more;
    /* This many parameters are READY. */
    int ready;
    /* True if all parameters are READY. */
    bool complete;
    /* `started` counts the unit's sums of this step, `rounds` those that `sum` contains. */
    int started, rounds;
    /* `running` is the sum in flight. */
    struct gradient_sum running;
};
struct reducer {
    const struct partition *partition;
    struct sums sums;
    struct priority_comms *comms;                                /* owned by the caller */
    tutti_comm *control_comm;                                   /* owned by the caller */
    struct gathering_sum *unit;                         /* [units], owned */
    /* `asked` marks parameters whose caller has asked for the place of the gradient. */
    uint8_t *presence, *asked;                          /* [parameters], owned */
    /* `used` marks parameters with a gradient in this step: on this rank, then on any rank. Flags follow them. */
    uint8_t *used;                                      /* [parameters + FLAGS], owned */
    struct sum_order order;
    /* `begun` counts the sums started in this step. */
    int begun;
    /* `flying` has the units whose sums are in flight, oldest first. */
    int *flying, flying_count;                                 /* [units], owned */
    struct gradient_buffer *spare;
    /* There are at most this many buffers of one length, unless a wait might not end. */
    int buffers;
    /* After `closed` no gradients come until the next step. */
    bool held, closed;
    uint64_t waited_ns, late_units, sum_bytes, gradient_bytes;
};
/* The caller must call reducer_finish in every case, after it has destroyed the communicators. */
tutti_status reducer_init(struct reducer *reducer, const struct partition *partition, const tutti_zero_config *config,
    struct priority_comms *comms, tutti_comm *control_comm, struct trace *trace);
void reducer_finish(struct reducer *reducer);
tutti_status reducer_get_gradient_address(struct reducer *reducer, int parameter, void **out, bool *adds);
tutti_status reducer_mark_ready(struct reducer *reducer, int parameter);
/* Collective: ends the gradients of this step, and starts all remaining sums. */
tutti_status reducer_close_step(struct reducer *reducer);
/* Returns when the sum of the unit is over. */
tutti_status reducer_complete_unit(struct reducer *reducer, int unit);
/* Collective: closes, and returns when all sums are over. */
tutti_status reducer_settle_sums(struct reducer *reducer);
/* Collective: starts the next step. */
tutti_status reducer_begin_step(struct reducer *reducer);
/* Discards the gradients of this step. Collective if any rank has gradients. */
tutti_status reducer_discard_gradients(struct reducer *reducer);
/* Returns true between steps, while this rank has no gradient. */
bool reducer_is_at_rest(const struct reducer *reducer);
