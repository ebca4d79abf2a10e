/* A sum makes the average of this rank's slice of a unit from the gradients of all ranks, uncompressed or packed. */
#pragma once
#include "zero/compressed_exchange.h"
#include "zero/priority_comms.h"
#include "zero/trace.h"

/* The state that all sums share. */
struct sums {
    const struct partition *partition;
    const struct priority_comms *comms;
    struct trace *trace;
    /* With exchange.how.form NONE gradients travel uncompressed on comms, and the exchange is unused. */
    struct compressed_exchange exchange;
    /* The number of sums started, the packed bytes sent, and the bytes of the arrays in `residual`. */
    uint64_t started_count, packed_bytes, residual_bytes;
    /* residual[u] has the residual of the slice of unit u for each side, one after another, and then their momentum if
       the compression has momentum. `residual` is NULL without feedback. */
    float **residual;                                   /* [units], owned */
};
/* A packed sum waits first for host_requests (STAGE_HOST_SUM), then for the exchange of lengths (STAGE_LENGTHS), then
   for the packed slices (STAGE_SENDING). An uncompressed sum has only STAGE_SENDING. */
enum stage { STAGE_SENDING, STAGE_HOST_SUM, STAGE_LENGTHS };
struct gradient_sum {
    int unit;
    /* `from` has the unit's gradients, and `into` gets the average of this rank's slice. `part` has this host's sum of
       each side's slice, or is NULL if the ranks of a host do not sum first. */
    void *from, *into, *part;
    struct packed_slices packed;
    /* `request` is the exchange of lengths or of slices in flight. host_requests has a request for each side's sum on
       this host, or is NULL. */
    tutti_request request, *host_requests;              /* [sides], owned */
    enum stage stage;
    /* `status` is the result of the stages after sum_start. */
    tutti_status status;
    /* The number of the sum, the same on all ranks; it seeds random choices. */
    uint64_t sequence;
    struct trace_interval interval;
};
/* Prepares the exchange and the residuals. Collective if gradients are packed. The caller must call sums_finish in
   every case. */
tutti_status sums_init(struct sums *sums, const struct partition *partition, const tutti_compression *how,
    const struct priority_comms *comms, struct trace *trace);
void sums_finish(struct sums *sums);
/* Starts the sum of the unit's gradients in `from`, in the type of its sums; `into` gets the average of this rank's
   slice. Both must stay until sum_wait has returned, and the sum may change `from`. All ranks start the same sums in
   the same order, and pass each to sum_advance or sum_wait in that order. */
tutti_status sum_start(struct sums *sums, struct gradient_sum *sum, int unit, void *from, void *into);
/* Progresses the sum without waiting. Returns true if it has reached STAGE_SENDING, so that later sums may progress.
   Errors go to sum->status. */
bool sum_advance(struct sums *sums, struct gradient_sum *sum);
/* Waits until the sum has reached STAGE_SENDING: later sums may progress. */
tutti_status sum_await_sent(struct sums *sums, struct gradient_sum *sum);
/* Returns true if sum_wait would not wait for other ranks: the last exchange has ended, or an error. */
bool sum_is_over(struct gradient_sum *sum);
/* Waits for the sum, and completes it: unpacks and averages received slices into `into`. */
tutti_status sum_wait(struct sums *sums, struct gradient_sum *sum);
/* Frees the buffers of a packed sum. No operation may be in flight. */
void sum_finish(struct sums *sums, struct gradient_sum *sum);

/* Collective: writes to out[count of the parameter] the residual of all ranks in the scale of an average; zeros without
   feedback. It is the same on all ranks. */
tutti_status sums_get_residual(const struct sums *sums, int parameter, float *out, tutti_comm *control_comm);
/* Sets this rank's part of the residual of a parameter from in[count of the parameter], a result of sums_get_residual,
   and clears its momentum. */
void sums_set_residual(struct sums *sums, int parameter, const float *in);
/* Adds this rank's slice of an average (`sum`) back to the residual, for one parameter. The caller calls it for a
   parameter without a gradient on any rank: its average comes from residuals alone, and the step does not use it. */
void sums_return_to_residual(struct sums *sums, int parameter, const void *sum);
/* Sets all residuals and momentum to zero. */
void sums_clear_residuals(struct sums *sums);
