/* A sum leads from the gradients of a unit to the average of this rank's slice, uncompressed or packed. */
#pragma once
#include "zero/compressed_exchange.h"
#include "zero/priority_comms.h"
#include "zero/trace.h"

/* All sums share this state. */
struct sums {
    const struct partition *partition;
    const struct priority_comms *comms;
    struct trace *trace;
    /* With how.form NONE gradients travel uncompressed, in comms. */
    struct compressed_exchange exchange;
    uint64_t begun, packed_bytes, lost_bytes;
    /* `lost` has the residual of each side's slice, or is NULL. */
    float **lost;                                       /* [units], owned */
};
/* A sum first waits for `here` (STAGE_HOST_SUM), then for the exchange of lengths, then for `request`
   (STAGE_SENDING). */
enum stage { STAGE_SENDING, STAGE_HOST_SUM, STAGE_LENGTHS };
struct gradient_sum {
    int unit;
    /* `part` has this host's sum of each side's slice. */
    void *from, *into, *part;
    struct packed_slices packed;
    /* `here` has a request for each side's sum on this host, or is NULL. */
    tutti_request request, *here;                       /* owned */
    enum stage stage;
    /* `status` is the result of the stages after sum_start. */
    tutti_status status;
    uint64_t turn;
    struct trace_span span;
};
/* Collective if gradients are packed. The caller must call sums_finish in every case. */
tutti_status sums_init(struct sums *sums, const struct partition *partition, const tutti_compression *how,
    const struct priority_comms *comms, struct trace *trace);
void sums_finish(struct sums *sums);
/* `from` and `into` must stay until sum_wait has returned; the sum may change `from`. All ranks start the same sums in
   the same order, and pass each to sum_advance or sum_wait in that order. */
tutti_status sum_start(struct sums *sums, struct gradient_sum *sum, int unit, void *from, void *into);
/* Progresses the sum. Returns false if later sums must wait until this one is further. */
bool sum_advance(struct sums *sums, struct gradient_sum *sum);
/* Waits until later sums may progress. */
tutti_status sum_await_sent(struct sums *sums, struct gradient_sum *sum);
bool sum_is_over(struct gradient_sum *sum);
tutti_status sum_wait(struct sums *sums, struct gradient_sum *sum);
/* Frees the sum's memory. No operation may be in flight. */
void sum_finish(struct sums *sums, struct gradient_sum *sum);

/* Collective: writes the residual of a parameter, [count], the same on all ranks. */
tutti_status sums_get_residual(const struct sums *sums, int parameter, float *out, tutti_comm *control_comm);
/* Sets the residual of a parameter and clears its momentum. */
void sums_set_residual(struct sums *sums, int parameter, const float *in);
/* Returns this rank's slice of an average to the residual. The caller calls it for a parameter without a gradient on
   any rank: its average comes from residuals alone, and the step does not use it. */
void sums_return_to_residual(struct sums *sums, int parameter, const void *sum);
/* Clears all residuals. */
void sums_clear_residuals(struct sums *sums);
