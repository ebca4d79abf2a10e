/* The tuners of one communicator. Those of a rank are numbered as on all others, because all ranks meet kinds of calls
   in the same order. */
#pragma once
#include "backend/tuning/tuner.h"

/* The values of TUTTI_TUNER. */
enum tuner_mode { TUNER_OFF, TUNER_ON, TUNER_TAKES_ANY_VARIANT };
/* The tuners of one communicator. */
struct tuners {
    /* The part of the segment that ranks share. */
    struct tuning *tuning;
    enum tuner_mode mode;
    int count;
    struct tuner *of[MOST_TUNERS];                           /* owned */
};
/* Sets the mode by TUTTI_TUNER. shares_cores: ranks share cores, so a time depends more on the other ranks than on the
   choice, and tests are off. */
void tuners_init(struct tuners *tuners, struct tuning *tuning, bool shares_cores);
/* Finds the tuner of a kind of call. The first call of a kind gets a new tuner. *out is NULL if there are too many
   kinds; then the call runs as predicted. NO_MEMORY. */
tutti_status tuners_find_or_create(struct tuners *tuners, const struct tuner_key *key, struct tuner **out);
/* Frees all tuners. */
void tuners_finish(struct tuners *tuners);
/* Stops the tuners of a collective on all ranks of the host, because this rank asks for an algorithm. */
void tuners_stop_collective(struct tuners *tuners, enum collective collective);
/* True if a rank has asked for an algorithm of the collective. */
bool tuners_are_stopped(const struct tuners *tuners, enum collective collective);
