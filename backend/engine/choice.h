/* What runs when nobody chose, and how it is cut: of the host-memory algorithms of a family, over several hosts of the
   hierarchical ones, and of the tile sizes, the one of the least price on this machine (backend/model/price.h). It
   stands here because it asks three rooms that may not know of each other: the table of algorithms, the builder of
   plans, and the model.

   A choice is a function of the group's figures, its cores and ranks, the family, the size and the placement, and of
   nothing else: not of what was asked before, nor of who asks. So all ranks choose alike without a word. Over several
   hosts the placement does not count either: a host knows only its own. */
#pragma once
#include "backend/model/price.h"

/* OPEN: private, but peers can read them where they lie; whether they do is chosen, too. */
enum placement_kind {
    TENSORS_PRIVATE,
    TENSORS_SHARED_IN_PLACE,
    TENSORS_SHARED_APART,
    TENSORS_OPEN_IN_PLACE,
    TENSORS_OPEN_APART
};
static inline bool choice_is_open(enum placement_kind p)
{
    return p == TENSORS_OPEN_IN_PLACE || p == TENSORS_OPEN_APART;
}
static inline bool choice_is_shared(enum placement_kind p)
{
    return p == TENSORS_SHARED_IN_PLACE || p == TENSORS_SHARED_APART;
}
struct question {
    enum family family;
    const struct algorithm *algorithm;                  /* already chosen: only the tile is asked for; or NULL */
    size_t message_bytes;                               /* of one rank, its larger buffer; 0: not known, many */
    enum placement_kind placement;
    bool uneven;
    bool reading;                                       /* of open tensors: they are to be read */
};
struct choice {
    const struct algorithm *algorithm;
    size_t tile_bytes;
    int slots;
    double price;                                       /* ns; 0: there was nothing to choose from */
    bool reads;                                         /* open tensors are read where they lie, not staged */
    bool ordinary;                                      /* slots are written by ordinary stores, whatever pace.h says */
    bool short_laps;                                    /* slots come round while caches still hold them: slots.c */
    bool looks;                                         /* first where tensors lie, though the price says no */
};
struct chooser {                                        /* of one communicator */
    const struct layout *layout;
    struct layout *sample, *pair;                       /* of fewer ranks, of two, to be priced, or NULL; owned */
    struct cache *cache;
    int cores;                                          /* that the ranks of one host may run on */
    struct machine machine;                             /* alike on all ranks */
    double reading[2]; /* of little and much: a byte's cost, ÷ its figure; 0: unknown */
    struct choice_answer *answers;                             /* what was asked before */
    int answer_count, answer_room;
};
size_t half_octave(size_t bytes);                       /* the largest of 1, 1.5, 2, 3, 4, 6, … that is not above it */
/* NO_MEMORY; INVALID_ARGUMENT when an algorithm of one host is asked for on several; *out is then
   untouched. Message sizes are told apart to half an octave. */
tutti_status choose(struct chooser *chooser, const struct question *question, struct choice *out);
/* Of what was chosen, cut as it says, on so many bytes exactly: sets its price, 0 where there is none to know, as of
   messages between ranks of one host, of which nothing is measured. NO_MEMORY. */
tutti_status choice_price(struct chooser *chooser, const struct question *question, struct choice *choice);
/* Does it write slots? Shared tensors may need none. NO_MEMORY. */
tutti_status choice_stages(struct chooser *chooser, const struct question *question, const struct choice *choice,
    bool *out);
/* Is it one that is chosen from, when nobody asks for one and counts are even? */
bool choice_knows(const struct chooser *chooser, const struct algorithm *algorithm);
/* Whether the algorithm can run with uneven counts. */
bool choice_takes_uneven(const struct layout *layout, const struct algorithm *algorithm);
void chooser_finish(struct chooser *chooser);
/* What it costs to look first where the tensors lie, ÷ what was chosen for private ones. */
double choice_look_costs(const struct chooser *chooser, const struct choice *choice);
/* Is that so little that it is worth while before it is known that they are shared? */
bool choice_looks_first(const struct chooser *chooser, const struct choice *choice);
