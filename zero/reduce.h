/* Gradients, from the buffer in which they are written to the sum of each slice on its rank.
 *
 * In each step all units are summed once, as their gradients appear; zeros stand for what has not come when the step
 * ends. Gradients that come for a unit which has been summed already (another backward pass, not held before) stay in
 * its buffer until the step ends, and all units are summed once more.
 *
 * Where one slice is everybody's, gradients are summed where they were written, and stay there.
 *
 * No rank waits for another in a backward pass, but for a moment, for a buffer: beyond that it makes one more, as the
 * other may be waiting for this one in a call of its own. */
#pragma once
#include "zero/order.h"
#include "zero/sum.h"

enum presence { ABSENT, HELD, READY };                  /* of a parameter's gradient in its unit's buffer */
struct gradient_buffer { void *memory; size_t bytes; struct gradient_buffer *next; };
struct gathering_sum {                                  /* of one unit */
    struct gradient_buffer *buffer; /* its gradients; NULL: none have come since the last sum */
    struct gradient_buffer *sent;                                /* those that are being summed, or NULL */
    struct gradient_buffer *kept;                                /* has `sum`, where one slice is everybody's */
    void *sum, *more;                                   /* of this rank's slice: of the step, and of a later round */
    int ready;                                          /* parameters that are READY */
    bool complete;                                      /* all are */
    int started, rounds;                                /* its sums of this step; those that are in `sum` */
    struct gradient_sum running;                                  /* of the one that is on its way */
};
struct reducer {
    const struct partition *partition;
    struct sums sums;
    struct lanes *lanes;
    tutti_comm *word;
    struct gathering_sum *unit;                         /* [units] */
    uint8_t *presence, *asked;                          /* [parameters]; asked: for the place of its gradient */
    uint8_t *used; /* [parameters] in this step, here, then anywhere; and FLAGS */
    struct order order;
    int begun;                                          /* sums started in this step */
    int *flying, flies;                                 /* [units] those on their way, oldest first */
    struct gradient_buffer *spare;
    int buffers;                                        /* of one length */
    bool held, closed;                                  /* closed: no gradient comes until the next step */
    uint64_t waited_ns, late_units, sum_bytes, gradient_bytes;
};
/* `lanes` and `word` stay the caller's. reducer_finish is due in every case, when they have been left. */
tutti_status reducer_init(struct reducer *reducer, const struct partition *partition, const tutti_zero_config *config,
    struct lanes *lanes, tutti_comm *word, struct trace *trace);
void reducer_finish(struct reducer *reducer);
tutti_status reducer_gradient(struct reducer *reducer, int parameter, void **out, bool *adds);
tutti_status reducer_ready(struct reducer *reducer, int parameter);
/* Collective: no gradient comes any more; all sums are on their way. */
tutti_status reducer_close(struct reducer *reducer);
tutti_status reducer_complete(struct reducer *reducer, int unit);          /* returns when its sum is there */
tutti_status reducer_settle(struct reducer *reducer);   /* collective: closes, and all complete */
tutti_status reducer_next(struct reducer *reducer);     /* collective: the next step begins */
tutti_status reducer_drop(struct reducer *reducer);     /* collective, if there is any gradient */
bool reducer_is_at_rest(const struct reducer *reducer); /* between steps, with no gradient */
