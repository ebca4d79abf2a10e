/* One sum: from the gradients of a unit to the average of this rank's slice, as they are or packed. */
#pragma once
#include "zero/compressed_exchange.h"
#include "zero/lanes.h"
#include "zero/trace.h"

struct sums {                                           /* what all of them have in common */
    const struct partition *partition;
    const struct lanes *lanes;
    struct trace *trace;
    struct compressed_exchange exchange; /* how.form NONE: gradients travel as they are, in lanes */
    uint64_t begun, packed_bytes, lost_bytes;
    float **lost;                                       /* [units] what is kept of each side's slice; or NULL */
};
enum stage { MOVING, ADDING, TELLING }; /* what is on its way: `request`, or `here` before it, or how long slices are */
struct gradient_sum {
    int unit;
    void *from, *into, *part;                           /* part: of each side's slice, the sum of this host */
    struct packed_slices packed;
    tutti_request request, *here;                       /* here: [sides], of `part`; or NULL */
    enum stage stage;
    tutti_status status;                                /* of what followed it */
    uint64_t turn;
    struct trace_span span;
};
/* Collective, where gradients are packed. sums_finish is due in every case. */
tutti_status sums_init(struct sums *sums, const struct partition *partition, const tutti_compression *how,
    const struct lanes *lanes, struct trace *trace);
void sums_finish(struct sums *sums);
/* Both stay until sum_wait has returned; what is in `from` may change. All ranks start the same ones in the same order,
   and each goes through sum_advance or sum_wait in that order. */
tutti_status sum_start(struct sums *sums, struct gradient_sum *sum, int unit, void *from, void *into);
/* False: a later one has to wait until this one is further. sum_cross waits until it is. */
bool sum_advance(struct sums *sums, struct gradient_sum *sum);
tutti_status sum_cross(struct sums *sums, struct gradient_sum *sum);
bool sum_is_over(struct gradient_sum *sum);
tutti_status sum_wait(struct sums *sums, struct gradient_sum *sum);
void sum_finish(struct sums *sums, struct gradient_sum *sum);    /* when nothing runs any more */

/* Of a parameter, what averages have not had yet: [count], the same on all ranks. Collective. */
tutti_status sums_get_lost(const struct sums *sums, int parameter, float *out, tutti_comm *word);
void sums_set_lost(struct sums *sums, int parameter, const float *in);         /* its momentum begins anew */
/* No rank has a gradient of this parameter, so nobody takes what came of what was lost: this rank's slice of it is kept
   again. */
void sums_give_back(struct sums *sums, int parameter, const void *sum);
void sums_forget(struct sums *sums);                    /* all that was lost */
