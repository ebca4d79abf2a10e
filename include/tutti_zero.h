/* zero: divides the training state of a model among ranks, and schedules the exchange of its parts.
 *
 * A model is a list of *units*, for example its layers. The parameters of a unit have one element type and lie one
 * after another in the unit's *flat* array. The array is cut into one *slice* for each rank. The library sums the
 * gradients of a slice to its rank. That rank keeps the optimizer's moments of its slice alone, updates the slice, and
 * distributes it. The unit's *placement* (tutti_zero_placement) selects where the arrays live:
 *     SHARED       Each host has one copy, in pages that all its ranks map. A rank that updates its slice updates it
 *                  for the whole host; bytes move only between hosts. (ZeRO stage 3 without its gathers.)
 *     REPLICATED   Each rank has a whole copy; all ranks gather updated slices (stages 1 and 2).
 *     SHARDED      Each rank has only its own slices. A unit is gathered before each use, and whole until its release
 *                  (stage 3 with the least memory, or where hosts cannot share it).
 *                  A unit that is not whole reads as NaN.
 *     WHOLE        Nothing is divided: gradients are summed to all ranks, and each rank keeps all moments and updates
 *                  all parameters (stage 0, as DistributedDataParallel). All ranks have the same single slice.
 *
 * The training loop reports its events in this order in each step: `use` before a unit computes, `gradient` and `ready`
 * for each parameter as gradients appear, `step` at the end. The library derives the rest. It sums a unit's gradients
 * while the program computes others, and lets the program use a unit when it is up to date. All ranks sum units in one
 * agreed order. The first step uses descending unit numbers. Later steps use the order in which units were ready on
 * rank 0 in the first one. Gradients that come in another order are correct too, but wait. All ranks must use SHARDED
 * units in the same order, else they get MISMATCH. The library prefetches the unit that came next when the last two
 * uses occurred in this order before.
 *
 * With *async steps* (`ahead`), units that are needed earlier have higher priority, see tutti_zero_config.
 *
 * Errors are as in tutti.h. A refused call changes nothing. Any other error ends the tutti_zero, and the program must
 * destroy it. A rank that dies leaves its slice half updated, so training must resume from a checkpoint.
 *
 * Threads: the calls on one tutti_zero must not overlap. The tutti_zero owns the memory of flat arrays. */
#pragma once
#include "tutti.h"

#if defined(__cplusplus)
extern "C" {
#endif
typedef struct tutti_zero tutti_zero;
typedef enum tutti_zero_placement {
    TUTTI_ZERO_SHARED,
    TUTTI_ZERO_REPLICATED,
    TUTTI_ZERO_SHARDED,
    TUTTI_ZERO_WHOLE,
    TUTTI_ZERO_PLACEMENTS
} tutti_zero_placement;
/* The rule by which `step` updates a slice. MOMENTUM is SGD with momentum, without dampening. With NONE the caller
   updates the pieces between tutti_zero_claim and tutti_zero_publish. */
typedef enum tutti_zero_rule {
    TUTTI_ZERO_NONE,
    TUTTI_ZERO_SGD,
    TUTTI_ZERO_MOMENTUM,
    TUTTI_ZERO_ADAM,
    TUTTI_ZERO_ADAMW,
    TUTTI_ZERO_RULES
} tutti_zero_rule;

/* ---- gradients in fewer bytes ---- */
/* Gradients are packed in one of these forms:
       FLOAT16, BFLOAT16   All numbers, rounded to 16 bits.
       INT8, INT4          All numbers, as integers of 8 or 4 bits times a scale that 128 numbers share.
       TOPK                The largest numbers, `kept` of each 1,024.
       THRESHOLD           The numbers of at least the magnitude `threshold`, but at most as many as TOPK keeps.
       RANDOMK             `kept` of each 1,024 numbers; all ranks draw the same ones.
   If all hosts have the same number of ranks, the ranks of a host first sum their gradients, and only the exchange
   between hosts is packed. Otherwise, and on one host, the exchange between ranks is packed. A NaN or infinity arrives
   as it is, or turns a block of 128 numbers into NaN. */
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
/* The compression must be the same on all ranks. */
typedef struct tutti_compression {
    tutti_compression_form form;
    /* TOPK, RANDOMK and THRESHOLD keep this many of 1,024 numbers. */
    int kept;                                           /* 1 to 1,024 */
    /* INT8 and INT4 round up or down at random, so that the mean of many roundings is the number. */
    bool stochastic;
    /* The residual joins the gradients of the next step (error feedback). It takes 4 bytes for each number that a rank
       packs: all of the model, or the rank's part of it if the ranks of a host sum first. */
    bool feedback;
    /* TOPK, RANDOMK and THRESHOLD with feedback: gradients accumulate momentum before they are packed, and lose it
       where they are sent (Lin et al., Deep Gradient Compression, 2018). It takes 4 more bytes for each number. 0
       disables it. The optimizer should then have no momentum of its own. */
    double momentum;
    /* All random choices follow from this seed. */
    uint64_t seed;
    /* THRESHOLD compares it with a rank's gradients (on several hosts, the sum of a host's) plus the residual. For an
       average on its way back it is divided by the number of ranks. */
    double threshold;                                   /* above 0 */
} tutti_compression;

typedef struct tutti_zero_parameter {
    size_t count;                                       /* elements, at least 1 */
    /* The number of its unit, from 0; not lower than that of the parameter before. */
    int unit;
    /* The group selects the hyperparameters of a step. */
    int group;                                          /* from 0 */
} tutti_zero_parameter;
/* Computes the square roots of `count` numbers; `to` may be `from`. The form is that of vmsSqrt of Intel's MKL. */
typedef void tutti_square_roots(int count, const float *from, float *to, int64_t mode);
/* The caller starts with TUTTI_ZERO_CONFIG_INIT. */
typedef struct tutti_zero_config {
    size_t struct_size;                                 /* bytes */
    /* The communicator has all ranks. The library makes others from it in tutti_zero_create and then needs it no
       more. */
    tutti_comm *comm;
    int parameters, units, groups;
    const tutti_zero_parameter *parameter;              /* [parameters], copied */
    /* FLOAT32; BFLOAT16 or FLOAT16 with updates in float32; or FLOAT64 with rule NONE. Compression is for FLOAT32 and
       BFLOAT16. */
    const tutti_dtype *dtype;                           /* [units], copied */
    tutti_zero_placement placement;
    tutti_zero_rule rule;
    /* The number of gradient buffers for units of one length. 0 selects two. WHOLE has as many as units. */
    int buffers;
    /* The longest wait for another rank's update. 0 selects half an hour. */
    int64_t timeout_ms;
    /* SHARDED: the largest number of units that are gathered ahead of their use. */
    int prefetch;
    /* Async steps: `step` returns when all ranks have reached it. A thread averages, updates and sends first the units
       that the next forward pass uses first, and the others while that pass computes. Needs a rule; not for SHARDED. */
    bool ahead;
    /* The compression of gradients; not for WHOLE. */
    tutti_compression compression;
    /* Rules ADAM and ADAMW: the function that computes the square roots of second moments, called with
       square_roots_mode. It gives the same bits as an optimizer whose square roots are not correctly rounded. NULL:
       they are correctly rounded. With `ahead` the thread of the step calls it. */
    tutti_square_roots *square_roots;
    int64_t square_roots_mode;
    /* The name of the groups in messages, as "zero of GPT", copied; NULL: that of `comm`. */
    const char *name;
    /* The directory of a file in which this rank keeps moments and float32 copies, for states that do not fit in
       memory; only the state of about three units is in memory then. The file has no name, and ends with the process.
       NULL keeps them in memory. */
    const char *state_directory;
    /* Gradients of BFLOAT16 and FLOAT16 units are summed over the ranks in float32, and the step takes float32
       averages. Sums then move twice the bytes. Not for FLOAT64 units, nor with compression. */
    bool sums_in_float32;
} tutti_zero_config;
#define TUTTI_ZERO_CONFIG_INIT \
    { sizeof(tutti_zero_config), NULL, 0, 0, 0, NULL, NULL, TUTTI_ZERO_SHARED, TUTTI_ZERO_NONE, 0, 0, 1, false, \
        { TUTTI_COMPRESS_NONE, 0, false, false, 0, 0, 0 }, NULL, 0, NULL, NULL, false }
/* Creates a tutti_zero and its arrays for the model in `config`. Collective. MISMATCH if the ranks describe different
   models. */
TUTTI_API tutti_status tutti_zero_create(tutti_zero **out, const tutti_zero_config *config);
/* Destroys the tutti_zero; NULL is allowed. It waits at most 2 s for other ranks that still gather this rank's slices.
   In the middle of a step it ends the step of the other ranks with an error. */
TUTTI_API tutti_status tutti_zero_destroy(tutti_zero *zero);
/* Returns the address of a parameter, which the tutti_zero owns, or NULL for an invalid number. */
TUTTI_API void *tutti_zero_parameter_at(const tutti_zero *zero, int parameter);
/* Collective: all ranks start with the values that rank 0 has written to its parameters. To start again, the caller
   writes new values after tutti_zero_claim. */
TUTTI_API tutti_status tutti_zero_begin(tutti_zero *zero);

/* ---- the events of a step ---- */
/* Returns when all slices of the unit have the values of the last step. SHARDED: collective, and the use lasts until
   `release`. */
TUTTI_API tutti_status tutti_zero_use(tutti_zero *zero, int unit);
/* Does what tutti_zero_use does, for a backward pass. The use ends when all gradients of the unit have come, or with
   the step. */
TUTTI_API tutti_status tutti_zero_use_backward(tutti_zero *zero, int unit);
/* The caller stops reading the unit until its next use. SHARDED: its memory is freed when another unit is used. */
TUTTI_API tutti_status tutti_zero_release(tutti_zero *zero, int unit);
/* Collective. With kept, returns when all units may be read, with the values of the last step or tutti_zero_begin; they
   stay readable until the next step or begin. Without, SHARDED units are whole only while they are used. */
TUTTI_API tutti_status tutti_zero_keep(tutti_zero *zero, bool kept);
/* Returns where the caller writes the gradient of this parameter, in its unit's type. If *adds, the place has a
   gradient of an earlier backward pass of this step, and the caller adds to it. May wait for a buffer. */
TUTTI_API tutti_status tutti_zero_gradient(tutti_zero *zero, int parameter, void **out, bool *adds);
/* Reports that the caller has written the gradient. With the last gradient of a unit, this rank stops reading the unit
   in this pass, and the library sums the unit's gradients. */
TUTTI_API tutti_status tutti_zero_ready(tutti_zero *zero, int parameter);
/* Sets whether gradients are held. While held, ready gradients stay on their rank, and gradients of the next pass are
   added to them. */
TUTTI_API tutti_status tutti_zero_hold(tutti_zero *zero, bool held);
/* Collective: returns when all gradients are averaged over the ranks. A gradient that is missing on a rank counts as
   zero. A parameter without a gradient on any rank is not updated. `step` settles too. */
TUTTI_API tutti_status tutti_zero_settle(tutti_zero *zero);
/* Collective: settles, and returns the 2-norm of all averaged gradients together, bit-identical on all ranks. */
TUTTI_API tutti_status tutti_zero_norm(tutti_zero *zero, double *out);
/* The hyperparameters of a group: learning rate, weight decay, momentum (rule MOMENTUM), and beta1, beta2 and epsilon
   (rules ADAM and ADAMW). */
typedef struct tutti_zero_rates { double rate, decay, momentum, beta1, beta2, epsilon; } tutti_zero_rates;
/* Collective: updates this rank's slices from the gradients times `scale`, by the rule, with the rates of each group.
   Returns when this rank's part is done. With `ahead` it returns earlier: a thread does the rest, and the next call
   returns its error. `use` then waits for its unit on all ranks; every other call waits for this rank's whole step. */
TUTTI_API tutti_status tutti_zero_step(tutti_zero *zero, const tutti_zero_rates *rates, double scale);
/* Collective: returns when all units are up to date and no rank reads parameters. Rank 0 may then write parameters
   before tutti_zero_begin. If gradients are settled, each rank may write its pieces before tutti_zero_publish. */
TUTTI_API tutti_status tutti_zero_claim(tutti_zero *zero);
/* Collective: takes the step after tutti_zero_claim, when the caller has updated its pieces (rule NONE). */
TUTTI_API tutti_status tutti_zero_publish(tutti_zero *zero);
/* Discards the gradients of this step. Collective if all ranks have gradients or have settled them; MISMATCH if other
   ranks take the step. A rank without either returns at once, so if others may have gradients, as after an error that
   ended a pass of some ranks only, all ranks call tutti_zero_settle before. */
TUTTI_API tutti_status tutti_zero_drop(tutti_zero *zero);

/* ---- the state of a rank ---- */
/* A piece is the part of one parameter in this rank's slice. */
typedef struct tutti_zero_piece {
    /* The piece has `count` elements of the parameter, from element `at` on. 0: it is empty. */
    size_t at, count;
    /* The step updates this value, which is float64 in units of FLOAT64 and float32 in all others, and its moments.
       Absent moments are NULL. */
    void *value;
    float *first, *second;
    /* The gradient is averaged, in the unit's type or that of its sums, and valid from `settle` to the step. */
    void *gradient;
    /* This many steps have updated the parameter. */
    uint64_t steps;
    /* True if some rank has a gradient, valid from `settle` to the step. */
    bool used;
} tutti_zero_piece;
/* Describes this rank's piece of a parameter. */
TUTTI_API tutti_status tutti_zero_get_piece(const tutti_zero *zero, int parameter, tutti_zero_piece *out);
/* Collective: returns when no rank reads the pieces of another. Until its next call each rank may read its own values
   and moments, and may write them if it calls tutti_zero_begin_pieces next. Gradients stay. */
TUTTI_API tutti_status tutti_zero_claim_pieces(tutti_zero *zero);
/* Collective: all ranks continue with the values that each has written to its pieces. WHOLE: all ranks must have
   written the same values. */
TUTTI_API tutti_status tutti_zero_begin_pieces(tutti_zero *zero);
/* Returns which elements of the parameter are in the slice of `rank`. */
TUTTI_API tutti_status tutti_zero_span(const tutti_zero *zero, int parameter, int rank, size_t *at, size_t *count);
/* Sets how many steps have updated a parameter, after the caller has restored the pieces from a checkpoint. */
TUTTI_API tutti_status tutti_zero_set_steps(tutti_zero *zero, int parameter, uint64_t steps);

/* Read and set the residual of a parameter, between steps. The array has all elements of the parameter, in the scale of
   an average, the same on all ranks; zeros without feedback. tutti_zero_get_lost is collective. tutti_zero_set_lost
   takes this rank's part of the residual from the array; all ranks call it. */
TUTTI_API tutti_status tutti_zero_get_lost(tutti_zero *zero, int parameter, float *out);
TUTTI_API tutti_status tutti_zero_set_lost(tutti_zero *zero, int parameter, const float *in);

/* The caller sets struct_size. All numbers count from tutti_zero_create. */
typedef struct tutti_zero_report {
    size_t struct_size;                                 /* bytes */
    uint64_t steps;
    /* How long the caller has waited for updates of other ranks, and for sums in gradient, settle and step. */
    uint64_t waited_use_ns, waited_sums_ns;
    /* This many units were ready before their turn. */
    uint64_t late_units;
    /* The rank has given these bytes of gradients to sums, with padding. */
    uint64_t sum_bytes;
    /* The rank has received these bytes of parameters that other ranks have updated. */
    uint64_t moved_bytes;
    /* The memory of flat arrays, of gradient buffers and sums, and of moments. parameter_bytes counts this rank's own
       arrays, or its share of shared arrays, or its slices and the most memory of whole units. */
    uint64_t parameter_bytes, gradient_bytes, state_bytes;
    /* This many uses of SHARDED units were not prefetched. */
    uint64_t unforeseen;
    /* The rank has sent these bytes of packed gradients. */
    uint64_t packed_bytes;
    /* The largest value that gradient_bytes has had. parameter_bytes and state_bytes are already largest values. */
    uint64_t gradient_peak_bytes;
    /* The file in state_directory has these bytes. */
    uint64_t state_file_bytes;
} tutti_zero_report;
/* Fills in the report. */
TUTTI_API tutti_status tutti_zero_get_report(const tutti_zero *zero, tutti_zero_report *out);

/* An event lasts from the start to the end of what it describes. Its times are those of CLOCK_MONOTONIC. */
typedef enum tutti_zero_event_kind {
    /* The caller uses a unit, and waits for it if needed. */
    TUTTI_ZERO_USED,
    /* The caller asks for the place of a gradient, and has to wait. */
    TUTTI_ZERO_ASKED,
    /* The caller has written the last gradient of a unit. This event has no duration. */
    TUTTI_ZERO_READY,
    /* The caller settles the gradients or computes their norm. */
    TUTTI_ZERO_SETTLED,
    /* The caller takes or publishes a step. */
    TUTTI_ZERO_STEPPED,
    /* The rank updates its slice of a unit, in STEPPED or on the thread of async steps. */
    TUTTI_ZERO_UPDATED,
    /* The ranks sum a unit's gradients. */
    TUTTI_ZERO_SUMMED,
    /* The ranks gather a unit's slices. */
    TUTTI_ZERO_GATHERED,
    TUTTI_ZERO_EVENT_KINDS
} tutti_zero_event_kind;
typedef struct tutti_zero_event {
    tutti_zero_event_kind kind;
    /* -1 if the event concerns no single unit. */
    int unit;
    int64_t began_ns, ended_ns;
    /* SUMMED: the bytes given to the sum. GATHERED: the bytes of other ranks' slices. */
    uint64_t bytes;
} tutti_zero_event;
/* Records up to `events` events from now on. 0 stops recording. */
TUTTI_API tutti_status tutti_zero_watch(tutti_zero *zero, size_t events);
/* Copies up to `capacity` recorded events, in the order of their ends. *count gets the number recorded, and *missed the
   number that exceeded the room. */
TUTTI_API tutti_status tutti_zero_get_events(tutti_zero *zero, tutti_zero_event *out, size_t capacity, size_t *count,
    size_t *missed);

/* ---- compressed averages of arrays that the caller owns ---- */
typedef struct tutti_compressor tutti_compressor;
/* Creates a compressor for the ranks of `comm`. Collective. MISMATCH if the ranks give different compressions. Calls on
   one compressor must not overlap. */
TUTTI_API tutti_status tutti_compressor_create(tutti_compressor **out, tutti_comm *comm, const tutti_compression *how);
/* Destroys the compressor; NULL is allowed. */
TUTTI_API tutti_status tutti_compressor_destroy(tutti_compressor *compressor);
/* Returns the room for residuals: for arrays of `count` elements, this rank keeps the residuals of *kept elements from
   *at on. With momentum the residual array is twice as long: first all residuals, then all momentum. *keepers ranks
   keep residuals of each element. */
TUTTI_API tutti_status tutti_compressor_span(const tutti_compressor *compressor, size_t count, size_t *at, size_t *kept,
    int *keepers);
/* Collective: averages `data` over all ranks in place, bit-identical on all. FLOAT32 or BFLOAT16. `lost` is this rank's
   residual, see tutti_compressor_span, and starts as zeros; NULL disables feedback. Random choices follow from the seed
   and `turn`, a number of the call that is the same on all ranks. *sent grows by the packed bytes that this rank
   sends. */
TUTTI_API tutti_status tutti_compressor_average(tutti_compressor *compressor, void *data, size_t count,
    tutti_dtype dtype, float *lost, uint64_t turn, uint64_t *sent);
#if defined(__cplusplus)
}
#endif
