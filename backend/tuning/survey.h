/* A survey opens a choice again when the machine has changed: for some calls each call runs another candidate, and the
 * fastest one becomes the incumbent. An A/B test needs 30 to 100 calls for one candidate. A survey runs one call of
 * each candidate, which suffices because the incumbent has become much slower, and A/B tests improve its result later.
 *
 * The ranks share a list of codes, one for each call of the kind from call `survey_from` on. The decider adds an entry
 * before any rank begins its call, so it can use the times of the calls before. All ranks count the calls of a kind in
 * the same way. The candidates are first the choices that surveys have replaced, because cores that are moved often
 * come back; then the predicted choice; then the best so far with one property changed. */
#pragma once
#include "backend/host/segment.h"
#include "backend/tuning/choice_code.h"
#include "backend/tuning/variants.h"
#include "backend/tuning/watch.h"

/* A choice with its code, and the least and the largest median of its blocks in ns; in a survey, ns is the time of its
   call. */
struct candidate { struct choice choice; uint32_t code; double ns, max_ns; };
/* Without a change a survey begins after SURVEY_EVERY watched calls. */
enum { KEPT_CHOICES = 2, SURVEY_EVERY = 1000 };
/* An entry has this bit beside its code, so that it is not 0. */
#define SURVEY_ENTRY (1u << CHOICE_BITS)
/* The survey of one kind of call. Only the decider uses it. */
struct survey {
    struct tuner_line *line;
    /* It runs; it began because the machine has changed; its result is known. */
    bool is_running, is_alarmed, is_decided;
    /* While it runs: it follows a survey that replaced the incumbent. Once it is decided: the next one will follow
       it. */
    bool follows;
    /* The number of the first call of the last survey; 0: there has been no survey. */
    uint64_t from;
    /* The candidates of the calls from that one on, the variants that they are, and the best times before them. */
    struct candidate tried[SURVEY_CALLS];
    int variant[SURVEY_CALLS];
    double base_ns[SURVEY_CALLS];
    /* The number of entries that are written, of those that are trials, and of times that have come. */
    int entries, trials, times;
    /* The best candidate so far, the incumbent's time, and the loss by trials in calls of the incumbent. */
    struct candidate best;
    double incumbent_ns, lost;
    /* The next kept choice and the next variant to try. `again` is a variant that made a candidate faster than its
       base, but not than the best; -1: none. */
    int next_kept, next_variant, again;
    bool has_tried_predicted;
    /* The number of surveys in a row without a winner, the call after which a change may start another survey, and the
       call after which one starts without a change. */
    int fruitless;
    uint64_t next_call, next_planned;
    /* Incumbents that surveys have replaced, the last one first. */
    struct candidate kept[KEPT_CHOICES];
    int kept_count;
};
/* The call that begins. number: of its kind, from 1. ahead, behind: by how many calls other ranks may be ahead of this
   rank or behind it. */
struct survey_call {
    uint64_t number, ahead, behind;
    const struct candidate *incumbent;
    const struct choice *predicted;
    const struct question *question;
    const struct variant_limits *limits;
    /* Every watch-th call is watched. */
    uint64_t watch;
};
/* True if all ranks have passed the list of the last survey, so that a survey may start. */
bool survey_may_start(const struct survey *survey, const struct survey_call *call);
/* Starts a survey with the first call that no rank can have begun. */
void survey_start(struct survey *survey, const struct watch *watch, const struct survey_call *call);
/* True if the survey that runs is not decided and can be. */
bool survey_is_complete(const struct survey *survey, const struct survey_call *call);
/* Decides the survey. Returns true if survey->best wins. If it wins because the machine has changed, the incumbent,
   whose usual time is usual_ns, becomes a candidate of later surveys. */
bool survey_decide(struct survey *survey, const struct survey_call *call, double usual_ns);
/* Writes the entries of the calls that ranks may begin before the decider begins its next call: trials, and then the
   best candidate so far, or the incumbent once the survey is decided. NO_MEMORY only ends the trials. */
void survey_write_due_entries(struct survey *survey, const struct survey_call *call);
/* Adds the time of call `number`, which ran `code`. watch: of the incumbent. */
void survey_add_time(struct survey *survey, struct watch *watch, uint64_t number, uint32_t code, double ns);
/* Ends the survey without a result. */
void survey_abort(struct survey *survey);
/* Ends surveys for good, and withdraws the list once all ranks have passed it: a rank that asks for an algorithm does
   not count that call, so it would read entries of other calls. */
void survey_retire(struct survey *survey, const struct survey_call *call);
