/* Choices beside the one that is priced: by a number that ranks can tell each other, and what differs from one of them
   in one thing. */
#pragma once
#include "backend/engine/choice.h"

enum { CHOICE_BITS = 20 };
/* All of a choice but its price, in so many bits; never 0. Its tile is a power of two. */
uint32_t choice_code(const struct choice *choice);
/* The same again. False: no rank of one host can run that, so who has written it is not in its right mind. */
bool choice_decode(uint32_t code, enum family family, struct choice *out);
bool choice_code_looks(uint32_t code);                  /* whether that choice looks first; no: 0 */
bool choice_code_reads(uint32_t code);                  /* whether it reads open tensors; no: 0 */
enum { CHOICE_WORDS = 64 };
void choice_words(const struct choice *choice, char out[CHOICE_WORDS]);        /* as in "two_shot 256Kx3 stored" */

/* What differs from a choice in one thing, by its number: how slots are written, if `paced` says that both ways are
   open; how soon they come round; larger and smaller tiles; one tile more or less in flight; whether open tensors are
   read, or those that could be open; looking first where tensors lie, if it does not look yet; another algorithm. The
   last three are as they are priced. What can differ most comes last: what it is compared with has become better by
   then. *exists is false where there is no such thing, where it would change nothing, and for what is priced at more
   than `most` times the least. NO_MEMORY. */
enum { READ_VARIANT = 7, LOOK_VARIANT, FIRST_ALGORITHM, VARIANTS = FIRST_ALGORITHM + 4 };
struct variety {
    struct chooser *chooser;
    bool paced;
    double most;
    enum placement_kind could_be;                       /* private tensors, for who looks, or lets others read them */
};
tutti_status choice_vary(const struct variety *variety, const struct question *question, const struct choice *from,
    int number, struct choice *out, bool *exists);
