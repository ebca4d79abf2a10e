/* Turns an operation into a program that runs: start, step, cancel. Only the driver calls these functions. */
#pragma once
#include "backend/engine/operation.h"
#include "backend/tuning/selection.h"
#include "backend/tuning/tuners.h"

/* The choice and the program of the last call of a collective, because most calls repeat them. */
struct recent {
    /* The bytes of one part; for uneven counts the sum of all parts if all ranks know it, else 0. */
    uint64_t bytes;
    int root;
    bool stage_inputs, uneven;
    /* The algorithm that the call or its communicator asks for, or NULL. */
    const struct algorithm *requested;
    /* The algorithm chosen for private tensors. */
    const struct algorithm *algorithm;
    /* Late selection: the call chooses its plan after the roll call, whatever candidate a tuner runs. */
    bool selects_late;
    /* With late selection private tensors may be read in place. */
    bool may_read;
    /* The program of the last call, or NULL. After a late selection it fits the placement below. */
    struct program *program;
    /* Masks of the ranks of this host, in the launcher's `masks`. */
    uint64_t *shared, *in_place;
    /* The flags of that placement (struct placement). */
    bool is_required, open, must_read;
    /* The choice that the program implements. */
    struct choice chosen;
    /* The code of the candidate that the program implements; 0: it is as predicted. */
    uint32_t code;
    /* The tuner of calls of this kind. NULL: they run as predicted. */
    struct tuner *tuner;
};
/* The properties that two calls of the same kind share. Such calls differ only in buffers and sequence. */
struct call {
    int collective, root;
    tutti_dtype dtype;
    tutti_op op;
    uint64_t count;
    uint64_t bits;
    const struct algorithm *requested;
    bool uneven, rows;
};
/* Returns true if both calls may use one program: all fields are equal, and the counts are even. */
static inline bool call_is_same_kind(const struct call *a, const struct call *b)
{
    return a->requested == b->requested && a->count == b->count && a->collective == b->collective
        && a->dtype == b->dtype && a->op == b->op && a->root == b->root && a->bits == b->bits && a->rows == b->rows
        && !a->uneven && !b->uneven;
}
/* The limits of the two caches of plans. KEPT_BYTES: plans with programs; the last program of each collective stays
   even beyond the limit. PREDICTED_BYTES: plans from which only costs are computed. */
enum { KEPT_BYTES = 4 << 20, PREDICTED_BYTES = 4 << 20 };
/* At most PENDING timed calls wait for a batch in which their times are read from all ranks. */
enum { PENDING = 8 };
/* The operation numbers of timed calls, and their tuners. */
struct pending_launch {
    struct {
        struct tuner *tuner;
        uint64_t number;
    } of[PENDING];
    int count;
};
/* The choices, plans and tuners of a communicator. The driver owns these fields. */
struct launcher {
    /* TUTTI_TILE_BYTES and TUTTI_SLOTS; 0: chosen by cost. */
    int64_t tile_setting, slots_setting;
    /* 1: private tensors are read in place; 0: they are staged; -1: chosen by cost. */
    int64_t single_copy;
    /* The number of ranks of this host. */
    int ranks;
    /* Plans to run, with their programs. */
    struct plan_cache *cache;
    /* Plans of all ranks, from which the chooser computes costs. */
    struct plan_cache *plans_to_predict;
    struct chooser chooser;
    struct recent recent[COLLECTIVE_COUNT];
    /* Two masks for each collective. */
    uint64_t *masks;                                    /* owned */
    /* The call that the executor's launch is prepared for. */
    struct call last;
    /* The number of declarations (of DECLARATIONS that are used in turn) that describe `last`. 0: `last` is invalid. */
    int declared_count;
    struct tuners tuners;
    /* The code of the candidate that the running operation uses, or 0. */
    uint32_t code;
    /* The running operation chooses its plan after the roll call. */
    bool plans_late;
    struct pending_launch pending;
    /* All ranks record when they begin and end the running operation, or only when they begin it. */
    bool timed, watched;
    /* When this rank began a timed operation. */
    int64_t begun_ns;
};
/* Reads the settings and allocates the caches, for `ranks` ranks on this host. The caller must call launcher_finish in
   every case. */
tutti_status launcher_init(struct launcher *launcher, int ranks);
/* Sets the machine parameters, from which costs follow. `cores`: on one host the cores that its ranks may use together;
   over several hosts the ranks of the largest host, so that all hosts make the same choices. */
void launcher_set_machine(struct launcher *launcher, const struct layout *layout, int cores,
    const struct machine *machine, struct tuning *tuning);
void launcher_finish(struct launcher *launcher);
/* Returns the bytes of the whole message, from which the algorithm is chosen; 0 for uneven counts. */
size_t operation_message_bytes(const tutti_comm *comm, const struct operation *op);
/* Finds the choice that an operation with even counts on private tensors would run, and its cost. can_read: all ranks
   can read each other's tensors. NO_MEMORY, or the errors of chooser_make_choice. */
tutti_status launch_predict_cost(tutti_comm *comm, const struct question *question, bool can_read, struct choice *out);
/* The count in a declaration of uneven counts, which ranks compare in separate arrays. */
#define UNEVEN_COUNT UINT64_MAX
/* The op in a declaration of a sum whose rows are normalised; `bits` describes how. */
enum { OP_OF_ROWS = TUTTI_OP_COUNT };
/* Chooses, binds and announces the operation. After an error the rank has announced no operation. */
tutti_status launch_start(tutti_comm *comm, struct operation *op);
/* Writes the sequence number, and if needed the properties of the last call, into the declaration of the operation that
   begins. */
void launch_declare(tutti_comm *comm, uint64_t sequence);
/* Continues the operation as far as it gets. Returns OK at its end. IN_PROGRESS: the executor's `blocked` has the words
   that it waits for. */
tutti_status launch_step(tutti_comm *comm, struct operation *op);
/* Cancels the running operation. Afterwards this process no longer touches its buffers; peers may do so until
   tensors_poll_release returns true. Returns false if it is not cancelled yet, see executor_cancel. */
bool launch_cancel(tutti_comm *comm);
