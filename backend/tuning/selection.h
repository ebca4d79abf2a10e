/* Chooses what runs when the user chose no algorithm, and how the message is cut: the algorithm and the tile size with
   the least cost on this machine (backend/model/cost.h). Candidates are the host-memory algorithms of a collective, or
   over several hosts the hierarchical ones. This file is in a layer above three folders that must not depend on each
   other: the table of algorithms, the builder of plans, and the model. A choice depends only on the group's machine
   parameters, its cores and ranks, the collective, the size and the placement. It depends neither on earlier questions
   nor on the rank that asks. So all ranks choose the same without communication. Over several hosts the placement is
   ignored, because a host sees only its own. */
#pragma once
#include "backend/model/cost.h"

/* Where the tensors of all ranks of the host lie. OPEN: in private memory that peers can read; whether they do is part
   of the choice. IN_PLACE: INPUT and OUTPUT are one tensor; APART: they are two. */
enum placement_kind {
    TENSORS_PRIVATE,
    TENSORS_SHARED_IN_PLACE,
    TENSORS_SHARED_APART,
    TENSORS_OPEN_IN_PLACE,
    TENSORS_OPEN_APART
};
static inline bool placement_is_open(enum placement_kind kind)
{
    return kind == TENSORS_OPEN_IN_PLACE || kind == TENSORS_OPEN_APART;
}
static inline bool placement_is_shared(enum placement_kind kind)
{
    return kind == TENSORS_SHARED_IN_PLACE || kind == TENSORS_SHARED_APART;
}
/* The call for which a choice is made. */
struct question {
    enum collective collective;
    /* An algorithm that is already chosen, so that only the tile is asked for; or NULL. */
    const struct algorithm *algorithm;
    /* The bytes of the larger buffer of one rank. 0: unknown, and probably large. */
    size_t message_bytes;
    enum placement_kind placement;
    /* The counts of the ranks differ. */
    bool is_uneven;
    /* The choice must read open tensors, not stage them. */
    bool must_read;
};
/* The answer: how the call runs. */
struct choice {
    const struct algorithm *algorithm;
    size_t tile_bytes;
    int slots;
    /* The cost in ns; 0 if there was only one candidate. */
    double cost;
    /* Open tensors are read in place, not staged. */
    bool reads_private;
    /* Slots are written by ordinary stores, whatever execute/pace.h decides. */
    bool ordinary_stores;
    /* Slots rotate over so few bytes that caches still hold them; see execute/slots.c. */
    bool short_ring;
    /* The call selects late although the predicted costs are against it. */
    bool selects_late;
};
/* The chooser of one communicator. */
struct chooser {
    const struct layout *layout;
    /* Layouts of fewer ranks and of two ranks, whose plans are predicted; NULL until needed. */
    struct layout *sample, *pair;                       /* owned */
    struct plan_cache *cache;
    /* The cores that the ranks of one host may use. */
    int cores;
    /* Equal on all ranks. */
    struct machine machine;
    /* The measured cost of a byte that the kernel reads, relative to its machine parameter: of small and of large
       messages. 0: not computed yet. */
    double reading_scale[2];
    /* Earlier questions with their choices. */
    struct choice_answer *answers;                      /* owned */
    int answer_count, answer_room;
};
/* Returns the largest of 1, 1.5, 2, 3, 4, 6, … that is at most `bytes`. */
size_t size_floor_half_octave(size_t bytes);
/* Answers a question: the choice with the least cost for the message size rounded down to a half octave. NO_MEMORY.
   INVALID_ARGUMENT if the question asks for an algorithm of one host on several; *out is then unchanged. */
tutti_status chooser_make_choice(struct chooser *chooser, const struct question *question, struct choice *out);
/* Sets the cost of a choice for exactly this message size. The cost is 0 where no parameter is measured, as for
   messages between ranks of one host. NO_MEMORY. */
tutti_status choice_compute_cost(struct chooser *chooser, const struct question *question, struct choice *choice);
/* Sets *out to whether the choice writes slots. Shared tensors may need none. NO_MEMORY. */
tutti_status choice_writes_slots(struct chooser *chooser, const struct question *question, const struct choice *choice,
    bool *out);
/* True if the algorithm is a candidate when the question names none and counts are even. */
bool chooser_considers_algorithm(const struct chooser *chooser, const struct algorithm *algorithm);
/* True if the algorithm can run with uneven counts. */
bool algorithm_takes_uneven(const struct layout *layout, const struct algorithm *algorithm);
/* Frees the answers and layouts of the chooser, but not its cache. */
void chooser_finish(struct chooser *chooser);
/* Returns the cost of late selection (a round) divided by the cost of this choice, which is for private tensors. */
double choice_cost_of_late_selection(const struct chooser *chooser, const struct choice *choice);
/* True if that ratio is so small that the call selects late although its tensors may not be shared. */
bool choice_selects_late(const struct chooser *chooser, const struct choice *choice);
