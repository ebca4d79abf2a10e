/* zero: who keeps which part of a model's training, and when its parts travel.
 *
 * A model is a list of *units* (its layers, say), each with parameters of one element type that lie one behind another
 * in the unit's *flat* array. The array is cut into one *slice* for each rank: the gradients of a slice are summed to
 * its rank, which keeps the optimizer's moments of that slice alone, updates it, and tells the others. Where the arrays
 * live is the unit's *home*:
 *     SHARED       once on each host, in pages that all its ranks map. Whoever updates its slice has updated it for all
 *                  of its host; only between hosts do bytes move. (ZeRO stage 3 without its gathers.)
 *     REPLICATED   whole on each rank; updated slices are gathered by all (stages 1 and 2).
 *     SHARDED      a rank has its own slices alone; a unit is gathered before each use, and whole until its release
 *                  (stage 3 with the least memory, or where hosts cannot share it).
 *                  Not whole, it reads as NaN.
 *     WHOLE        nothing is divided: gradients are summed to all ranks, and each keeps all moments and updates all
 *                  (stage 0, as DistributedDataParallel). One slice is everybody's.
 *
 * The training loop tells what happens, in this order in each step: `use` before a unit computes, `gradient` and
 * `ready` for each parameter as gradients appear, `step` at the end, and all else follows: a unit's gradients are
 * summed while others are still computed, and a unit is used when it is up to date. Units are summed in an order that
 * all ranks have agreed on: first the reverse of their numbers, from the second step on the order in which the first
 * one had them ready on rank 0. Gradients that come in another order are right as well, and wait. SHARDED units are
 * used in the same order on all ranks, else MISMATCH; what has followed the last two uses before is gathered ahead.
 *
 * What is needed sooner has the higher priority where steps are *ahead*: see tutti_zero_config.
 *
 * Errors are as in tutti.h. What is refused there, is here; any other error ends the tutti_zero: all that is left is
 * to destroy it. A rank that dies leaves its slice half updated: go on from a checkpoint.
 *
 * Threads: one at a time. The memory of flat arrays belongs to the tutti_zero. */
#pragma once
#include "tutti.h"

#if defined(__cplusplus)
extern "C" {
#endif
typedef struct tutti_zero tutti_zero;
typedef enum tutti_zero_home {
    TUTTI_ZERO_SHARED,
    TUTTI_ZERO_REPLICATED,
    TUTTI_ZERO_SHARDED,
    TUTTI_ZERO_WHOLE,
    TUTTI_ZERO_HOMES
} tutti_zero_home;
/* What `step` does to a slice. MOMENTUM is SGD with momentum, without dampening. NONE: the caller updates the pieces
   between tutti_zero_claim and tutti_zero_publish. */
typedef enum tutti_zero_rule {
    TUTTI_ZERO_NONE,
    TUTTI_ZERO_SGD,
    TUTTI_ZERO_MOMENTUM,
    TUTTI_ZERO_ADAM,
    TUTTI_ZERO_ADAMW,
    TUTTI_ZERO_RULES
} tutti_zero_rule;

/* ---- gradients in fewer bytes ---- */
/* How they are packed on their way: rounded to 16 bits; as integers of 8 or 4 bits, times a scale that 128 numbers
   share; the largest, `kept` of each 1,024 (TOPK), those of at least the magnitude `threshold`, but no more than TOPK's
   (THRESHOLD), or as many as those that all ranks draw alike (RANDOMK). Where hosts have as many ranks each, the ranks
   of a host add theirs up first, and only what crosses between hosts is packed; else, and on one host, what goes from
   rank to rank. What is no number arrives as such, or makes 128 numbers so. */
typedef enum tutti_compression_form {
    TUTTI_COMPRESS_NONE,
    TUTTI_COMPRESS_FLOAT16,
    TUTTI_COMPRESS_BFLOAT16,
    TUTTI_COMPRESS_INT8,
    TUTTI_COMPRESS_INT4,
    TUTTI_COMPRESS_TOPK,
    TUTTI_COMPRESS_RANDOMK,
    TUTTI_COMPRESS_THRESHOLD,
    TUTTI_COMPRESS_FORMS
} tutti_compression_form;
typedef struct tutti_compression {                      /* the same on all ranks */
    tutti_compression_form form;
    int kept;                                           /* TOPK, RANDOMK, THRESHOLD: of 1,024 numbers, 1 to 1,024 */
    bool stochastic;                                    /* INT8, INT4: up or down by chance, right in the mean */
    bool feedback; /* what is lost joins the gradients of the next step (error feedback); 4 bytes for each number that a
                      rank packs: all of the model, or its part of that if ranks of a host add up first */
    double momentum; /* TOPK, RANDOMK, THRESHOLD with feedback: gradients gather it before they are packed, and lose it
                        where they are sent (Lin et al., Deep Gradient Compression, 2018); 4 bytes more for each number;
                        0: none. For optimizers that have none of their own */
    uint64_t seed;                                      /* of all chance */
    double threshold; /* THRESHOLD: above 0, of a rank's gradients (on several hosts, of the sum of a host's) with what
                         was lost; of an average on its way back, divided by the number of ranks */
} tutti_compression;

typedef struct tutti_zero_parameter {
    size_t count;                                       /* elements, at least 1 */
    int unit;                                           /* not less than that of the parameter before */
    int group;                                          /* of hyperparameters, from 0 */
} tutti_zero_parameter;
typedef struct tutti_zero_config {                      /* begin with TUTTI_ZERO_CONFIG_INIT */
    size_t struct_size;                                 /* sizeof(tutti_zero_config) */
    tutti_comm *comm;                                   /* of all ranks; used to make others, needed no longer */
    int parameters, units, groups;
    const tutti_zero_parameter *parameter;              /* [parameters]; copied */
    const tutti_dtype *dtype; /* [units] FLOAT32 or BFLOAT16, which is updated in float32; copied */
    tutti_zero_home home;
    tutti_zero_rule rule;
    int buffers; /* for gradients on their way, of units of one length; 0: two; WHOLE: as many as there are units */
    int64_t timeout_ms;                                 /* of waiting for another rank's update; 0: half an hour */
    int prefetch;                                       /* SHARDED: units that are gathered before they are used */
    bool ahead; /* `step` returns when all ranks have come to it: what the next forward pass uses first is averaged,
                   updated and sent first, the rest while that computes. Not SHARDED; with a rule */
    tutti_compression compression;                      /* of gradients; not WHOLE */
} tutti_zero_config;
#define TUTTI_ZERO_CONFIG_INIT \
    { sizeof(tutti_zero_config), NULL, 0, 0, 0, NULL, NULL, TUTTI_ZERO_SHARED, TUTTI_ZERO_NONE, 0, 0, 1, false, \
        { TUTTI_COMPRESS_NONE, 0, false, false, 0, 0, 0 } }
/* Collective. MISMATCH where ranks describe different models. */
TUTTI_API tutti_status tutti_zero_create(tutti_zero **out, const tutti_zero_config *config);
/* NULL is fine. Waits for no rank, but a moment for what others still gather. In the middle of a step it ends that of
   the others with an error. */
TUTTI_API tutti_status tutti_zero_destroy(tutti_zero *zero);
/* Where a parameter lies, as long as the tutti_zero lives; NULL: there is none of that number. */
TUTTI_API void *tutti_zero_parameter_at(const tutti_zero *zero, int parameter);
/* Collective: all begin with what rank 0 has written to its parameters by now. To begin anew, call tutti_zero_claim,
   and write after it. */
TUTTI_API tutti_status tutti_zero_begin(tutti_zero *zero);

/* ---- what happens in a step ---- */
/* Returns when the unit is as the last step has left it, on all of its slices. SHARDED: collective, and begins a use
   that `release` ends. */
TUTTI_API tutti_status tutti_zero_use(tutti_zero *zero, int unit);
/* The same, and the use ends by itself, when all gradients of the unit have come, or with the step. */
TUTTI_API tutti_status tutti_zero_use_backward(tutti_zero *zero, int unit);
/* The unit is not read any more until its next use. SHARDED: its memory goes when another is used. */
TUTTI_API tutti_status tutti_zero_release(tutti_zero *zero, int unit);
/* Collective: while kept all units may be read, as the last step or begin has left them, up to the next of these.
   Afterwards SHARDED units are whole as far as they are used. */
TUTTI_API tutti_status tutti_zero_keep(tutti_zero *zero, bool kept);
/* Where the gradient of this parameter is to be written, in its unit's type. *adds: there is one, of an earlier
   backward pass of this step; add to it. May wait for a buffer. */
TUTTI_API tutti_status tutti_zero_gradient(tutti_zero *zero, int parameter, void **out, bool *adds);
/* It is written. When all of the unit are, the unit is not read any more by this rank in this pass, and its gradients
   are summed. */
TUTTI_API tutti_status tutti_zero_ready(tutti_zero *zero, int parameter);
/* While held, gradients stay on their rank when they are ready, and those of the next pass are added to them. */
TUTTI_API tutti_status tutti_zero_hold(tutti_zero *zero, bool held);
/* Collective: returns when all gradients are averaged over the ranks. What a rank has brought no gradient for counts as
   zero; what no rank has, is left alone by the step. `step` does it when nobody has. */
TUTTI_API tutti_status tutti_zero_settle(tutti_zero *zero);
/* Collective: the 2-norm of all averaged gradients together, the same bits on all ranks. Settles. */
TUTTI_API tutti_status tutti_zero_norm(tutti_zero *zero, double *out);
typedef struct tutti_zero_rates { double rate, decay, momentum, beta1, beta2, epsilon; } tutti_zero_rates;
/* Collective: gradients, times `scale`, update this rank's slices by the rule, with the rates of each group. Returns
   when its own part is done, or earlier (ahead): a thread does the rest, and an error of it is the next call's. `use`
   waits for what its unit needs, on all ranks; all other calls for all of this rank's. */
TUTTI_API tutti_status tutti_zero_step(tutti_zero *zero, const tutti_zero_rates *rates, double scale);
/* Collective: returns when all units are up to date and no rank reads parameters any more: it may be written to them,
   on rank 0 before tutti_zero_begin, or, when gradients are settled, to the pieces before tutti_zero_publish. */
TUTTI_API tutti_status tutti_zero_claim(tutti_zero *zero);
/* As step, where the rule is NONE and the caller has updated its pieces. */
TUTTI_API tutti_status tutti_zero_publish(tutti_zero *zero);
/* Gradients of this step are forgotten. Collective if any rank has any: MISMATCH where others take the step. */
TUTTI_API tutti_status tutti_zero_drop(tutti_zero *zero);

/* ---- what a rank keeps ---- */
typedef struct tutti_zero_piece {                       /* of one parameter, what lies in this rank's slice */
    size_t at, count;                                   /* elements of the parameter; count 0: nothing of it */
    float *value, *first, *second;                      /* what is updated, in float32, and its moments, or NULL */
    void *gradient; /* averaged, in the unit's type; valid from `settle` to the step */
    uint64_t steps;                                     /* that have updated this parameter */
    bool used;                                          /* some rank has brought a gradient; valid likewise */
} tutti_zero_piece;
TUTTI_API tutti_status tutti_zero_get_piece(const tutti_zero *zero, int parameter, tutti_zero_piece *out);
/* Collective: returns when no rank reads what the pieces of another have; until its next call each rank may read its
   own, values and moments, and write to them before tutti_zero_begin_pieces. Gradients stay. */
TUTTI_API tutti_status tutti_zero_claim_pieces(tutti_zero *zero);
/* Collective: all go on with what each rank has written to its pieces. WHOLE: the same on all ranks. */
TUTTI_API tutti_status tutti_zero_begin_pieces(tutti_zero *zero);
/* Of every rank: which elements of the parameter its slice has. */
TUTTI_API tutti_status tutti_zero_span(const tutti_zero *zero, int parameter, int rank, size_t *at, size_t *count);
/* After a checkpoint was written into the pieces: how many steps have updated a parameter. */
TUTTI_API tutti_status tutti_zero_set_steps(tutti_zero *zero, int parameter, uint64_t steps);

/* Collective, between steps. Of a parameter, what its averages have not had yet, as compression has lost it: `count`
   elements, in the scale of an average, the same on all ranks (zeros: nothing). `set` divides it among the ranks. */
TUTTI_API tutti_status tutti_zero_get_lost(const tutti_zero *zero, int parameter, float *out);
TUTTI_API tutti_status tutti_zero_set_lost(tutti_zero *zero, int parameter, const float *in);

typedef struct tutti_zero_report {                      /* begin with struct_size; since `create` */
    size_t struct_size;                                 /* sizeof(tutti_zero_report) */
    uint64_t steps;
    uint64_t waited_use_ns, waited_sums_ns;             /* for updates of others; for sums, in gradient, settle, step */
    uint64_t late_units;                                /* that were ready before it was their turn */
    uint64_t sum_bytes;                                 /* of gradients given to be summed, with padding */
    uint64_t moved_bytes;                               /* of parameters that others have updated and that came here */
    uint64_t parameter_bytes, gradient_bytes, state_bytes; /* memory: of the flat arrays this rank has to itself, or its
                                                           share of those it shares, or its slices and the most that was
                                                           whole; of buffers and sums; of moments */
    uint64_t unforeseen;                                /* uses of SHARDED units that nothing was gathered ahead for */
    uint64_t packed_bytes;                              /* of gradients, packed, that this rank has sent to others */
} tutti_zero_report;
TUTTI_API tutti_status tutti_zero_get_report(const tutti_zero *zero, tutti_zero_report *out);

/* What happens when; times as of CLOCK_MONOTONIC. */
typedef enum tutti_zero_event_kind {
    TUTTI_ZERO_USED,                                    /* the caller's: use and use_backward, with their waiting */
    TUTTI_ZERO_ASKED,                                   /* gradient, where it took longer than to look */
    TUTTI_ZERO_READY,                                   /* the last gradient of a unit is written; takes no time */
    TUTTI_ZERO_SETTLED,                                 /* settle, norm, claim */
    TUTTI_ZERO_STEPPED,                                 /* step, publish */
    TUTTI_ZERO_UPDATED, /* a unit's slice; in STEPPED, or ahead on a thread of its own */
    TUTTI_ZERO_SUMMED,                                  /* a unit's gradients, from the start to the end of their sum */
    TUTTI_ZERO_GATHERED,                                /* its slices, likewise */
    TUTTI_ZERO_EVENT_KINDS
} tutti_zero_event_kind;
typedef struct tutti_zero_event {
    tutti_zero_event_kind kind;
    int unit;                                           /* -1: of none, or of all */
    int64_t began_ns, ended_ns;
    uint64_t bytes;                                     /* given to be summed; of slices of others */
} tutti_zero_event;
/* From now on keeps what happens, `events` of them; 0: no more. */
TUTTI_API tutti_status tutti_zero_watch(tutti_zero *zero, size_t events);
/* Those that were kept, by their ends: up to `capacity`, and how many there are; *missed: there was no room for. */
TUTTI_API tutti_status tutti_zero_get_events(tutti_zero *zero, tutti_zero_event *out, size_t capacity, size_t *count,
    size_t *missed);

/* ---- the same for gradients that somebody else keeps: averages of arrays ---- */
typedef struct tutti_compressor tutti_compressor;
/* Collective. MISMATCH where ranks ask for different ones. One thread at a time. */
TUTTI_API tutti_status tutti_compressor_create(tutti_compressor **out, tutti_comm *comm, const tutti_compression *how);
TUTTI_API tutti_status tutti_compressor_destroy(tutti_compressor *compressor);         /* NULL is fine */
/* Of arrays of `count`, the elements whose losses this rank keeps: *at to *at + *kept; with momentum twice as many
   numbers, first all losses, then all momentum. *keepers: how many ranks keep losses of each element. */
TUTTI_API tutti_status tutti_compressor_span(const tutti_compressor *compressor, size_t count, size_t *at, size_t *kept,
    int *keepers);
/* Collective: the average of `data` over all ranks, in place, the same bits on all. FLOAT32 or BFLOAT16. lost: what
   this rank has not sent of gradients before, see span, begun with zeros; NULL: nothing is fed back. Chance
   follows from the seed and `turn`, a number of the call that is the same on all ranks. *sent grows by the bytes that
   this rank has sent packed. */
TUTTI_API tutti_status tutti_compressor_average(tutti_compressor *compressor, void *data, size_t count,
    tutti_dtype dtype, float *lost, uint64_t turn, uint64_t *sent);
#if defined(__cplusplus)
}
#endif
