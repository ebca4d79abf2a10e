/* What bench_core measures: a row for each collective, size and kind of tensors, with what it is measured against and
 * how near it has to come. The goals are those of docs/performance.md, and this is the only place where they stand. */
#pragma once
#include "include/tutti.h"

enum verb { ALLREDUCE, REDUCE_SCATTER, ALLGATHER, BROADCAST, ALL_TO_ALL, REDUCE, GATHER, SCATTER, SEND_RECV, VERBS };
enum beside {                                           /* measured in turns with ours                            */
    FLAG_BARRIER,                                       /* of the same ranks                                      */
    BACKOFF_BARRIER,                                     /* waiting as the product does: more ranks than cores     */
    PING_PONG,                                          /* a flag there and back                                  */
    MEMCPY,                                             /* of as many bytes, on all ranks at once (send: alone)   */
    COHERENCE,                                          /* n / W_shared + n / R_dirty                             */
    FLOAT32,                                            /* the same bytes as float32                              */
};
struct bench_case {
    enum verb verb;
    size_t bytes;                                       /* of the greater buffer                                  */
    int ranks;
    tutti_dtype dtype;
    bool in_place, shared;
    enum beside beside;
    double goal;                                        /* most times what is beside; 0: none                     */
    double goal_p99;                                    /* the same of the 99th percentile of calls; 0: none      */
    double goal_p99_us;
};
enum { MOST_CASES = 512 };
int cases_list(struct bench_case out[MOST_CASES]);      /* how many; those with the same ranks stand together     */
/* "allreduce 64M in shared float32 2ranks": each word is something to select by */
void case_label(const struct bench_case *c, char *out, size_t capacity);
bool case_has_words(const char *label, const char *words);             /* all of them                             */
/* What a rank has to read and write at least, in the mean, ÷ what an update in place of `bytes` touches: all input is
   read once, all output written once, and what lies where it belongs stays there. */
double case_touched(const struct bench_case *c);
/* What a rank has to hand to others at least, and to take from them, in the mean, ÷ `bytes`, while caches hold it. A
   private tensor is staged, so its bytes are handed over and taken; of a shared one either side does all. */
double case_crossing(const struct bench_case *c);
const char *verb_name(enum verb verb);                  /* as tutti_comm_set_algorithm calls it                   */
const char *beside_name(enum beside beside);
