/* Reduces gradients, from the buffer in which they are written to the sum of each slice on its rank.
 *
 * Each step sums all units once, as their gradients appear. Zeros replace gradients that are missing at the end of the
 * step. Gradients of a unit that is already summed (from another backward pass without hold) stay in its buffer until
 * the step ends, and then all units are summed once more.
 *
 * If sums have another type than gradients, the gradients are converted into a buffer of that type before the sum
 * starts.
 *
 * If all ranks have the same single slice, gradients are summed in their buffer, and stay there.
 *
 * In a backward pass a rank waits for another only for a moment, for a buffer. Then it allocates one more buffer, as
 * the other rank may be waiting for this one in another call. */
#pragma once
#include "zero/order.h"
#include "zero/sum.h"

/* The state of a parameter's gradient in its unit's buffer. ABSENT: not written. HELD: written, but not for the next
   sum, because gradients are held or the caller is adding to it. READY: written for the next sum. */
enum presence { ABSENT, HELD, READY };
/* `next` is the next unused buffer. */
struct gradient_buffer { void *memory; size_t bytes; struct gradient_buffer *next; };
/* The gradients of one unit, and their sums in this step. */
struct unit_gradients {
    /* `buffer` has the unit's gradients since the last sum, or is NULL. */
    struct gradient_buffer *buffer;
    /* `sent` has the gradients of the sum in flight, or is NULL. */
    struct gradient_buffer *sent;
    /* If sums are made in place, sum_buffer is the buffer whose memory is `sum`. Otherwise it is NULL. */
    struct gradient_buffer *sum_buffer;
    /* `sum` is this rank's slice of the step's sum, and second_sum the slice of a second round. */
    void *sum, *second_sum;
    /* The number of parameters that are READY. */
    int ready_count;
    /* True if all parameters are READY and the unit may be summed in this step. */
    bool is_complete;
    /* The number of sums of the unit that have started in this step, and of those that `sum` contains. */
    int sums_started, rounds;
    /* `running` is the sum in flight. */
    struct gradient_sum running;
};
struct reducer {
    const struct partition *partition;
    struct sums sums;
    struct priority_comms *comms;                       /* owned by the caller */
    tutti_comm *control_comm;                           /* owned by the caller */
    struct unit_gradients *unit;                        /* [units], owned */
    /* presence[i] is an enum presence. asked[i] is 1 after the caller has asked where to write gradient i, until the
       gradient is ready. */
    uint8_t *presence, *asked;                          /* [parameters], owned */
    /* used[i] is 1 if parameter i has a gradient in this step: on this rank, and after the step is closed on any rank.
       The flags of reduce.c follow the parameters. */
    uint8_t *used;                                      /* [parameters + FLAGS], owned */
    struct sum_order order;
    /* The number of sums that have started in this step, of all units. */
    int sums_started;
    /* `in_flight` has the units whose sums are in flight, oldest first. */
    int *in_flight, in_flight_count;                    /* [units], owned */
    /* The list of unused buffers. */
    struct gradient_buffer *spare;
    /* The most buffers of one length, unless a wait for one of them might not end. */
    int buffers;
    /* is_held: the caller holds gradients back from sums. is_closed: no gradients come until the next step. */
    bool is_held, is_closed;
    /* The time this rank has waited for sums, the number of units that were complete before their turn in the order,
       the bytes given to sums, and the bytes of buffers and sums, now and at most. */
    uint64_t waited_ns, late_units, sum_bytes, gradient_bytes, most_gradient_bytes;
};
/* Allocates the lists; buffers follow when gradients come. The caller must call reducer_finish in every case, after it
   has destroyed the communicators. */
tutti_status reducer_init(struct reducer *reducer, const struct partition *partition, const tutti_zero_config *config,
    struct priority_comms *comms, tutti_comm *control_comm, struct trace *trace);
void reducer_finish(struct reducer *reducer);
/* Sets *out to the address where the caller writes the gradient of the parameter. *adds becomes true if a gradient is
   there to which the caller must add. May wait a moment for a buffer. */
tutti_status reducer_get_gradient_address(struct reducer *reducer, int parameter, void **out, bool *adds);
/* Records that the caller has written the gradient, and starts the sums that are possible now. */
tutti_status reducer_mark_ready(struct reducer *reducer, int parameter);
/* Collective: ends the gradients of this step, and starts all remaining sums. */
tutti_status reducer_close_step(struct reducer *reducer);
/* Waits for the unit's sum, if it is in flight. Then unit[unit].sum has this rank's averaged slice. */
tutti_status reducer_complete_unit(struct reducer *reducer, int unit);
/* Collective: closes the step, and returns when all its sums are complete. */
tutti_status reducer_settle_sums(struct reducer *reducer);
/* Forgets the gradients of the step, whose sums must be complete, and starts the next step. Collective. */
tutti_status reducer_begin_step(struct reducer *reducer);
/* Completes and discards the sums of this step, and clears all residuals. Collective if the step is closed or all ranks
   have gradients; does nothing on a rank without gradients while the step is open. */
tutti_status reducer_discard_gradients(struct reducer *reducer);
/* Returns true if the step is not closed and this rank has no gradient in it. */
bool reducer_is_at_rest(const struct reducer *reducer);
