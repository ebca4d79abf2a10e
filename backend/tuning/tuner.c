/* The decider's side of an A/B test. In each call it continues the current block, or begins the next one by writing the
   shared word, or starts a test of the next candidate. All of this stays within a budget of lost time. */
#include "backend/tuning/tuner.h"
#include "backend/base/ab_test.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/sorted.h"
#include "backend/base/status.h"
#include "backend/collectives/collectives.h"
#include "backend/tuning/tuners.h"
#include <math.h>
#include <string.h>

/* After this many calls of a block in a row without a time, the test ends. */
enum { MAX_CALLS_WITHOUT_TIME = 64 };
/* If two choices are equally fast, all blocks of one are better than all of the other by chance once in 20 times. */
enum { BLOCKS = 6, MOST_ROUNDS = 16, LONG_PAUSE = 64 * MAX_CALLS_WITHOUT_TIME };
/* How tests measure calls whose messages have fewer than max_bytes bytes. A program makes few long calls, so their
   tests take few; short calls differ by some ns, so their tests take many. All other numbers count calls: `first`
   before the first test, `pause` between searches, `warm` unmeasured and `enough` measured ones of a block, `batch`
   whose times are read together, and `watch`, a power of two or 0: every watch-th call is watched. early_share: the
   share of the first calls that tests may lose. */
static const struct measure {
    size_t max_bytes;
    int first, pause, warm, enough, batch, watch;
    double early_share;
} measures[] = {
    { 16 << 10, 32, 64, 4, 12, 8, 0, 0.025 },
    { 128 << 10, 32, 64, 4, 12, 8, 64, 0.1 },
    { 8 << 20, 32, 64, 4, 8, 1, 1, 0.1 },
    { SIZE_MAX, 8, 8, 1, 4, 1, 1, 0.1 },
};
/* FALL_BACK is the variant that returns from a placement-dependent incumbent to tuner->placement.fallback, and PROPOSED
   a candidate that a survey proposes. */
enum { FALL_BACK = VARIANTS, PROPOSED };
static const double AS_GOOD = 1.02;
/* Tests may lose at most early_share of the calls so far, and at most EARLY_CALLS calls (or those of EARLY_NS, if they
   are more) plus LATER_SHARE of the calls so far. A call counts as at most MOST_LOST calls lost. */
static const double LATER_SHARE = 0.01, EARLY_CALLS = 64, EARLY_NS = 500e3, MOST_LOST = 20;
/* The cost of a timed call: all ranks record when they begin and end it. */
static const double TIMED_NS = 100;

/* ---- the shared word ---- */
static const uint32_t CODE_MASK = (1u << CODE_BITS) - 1;
uint64_t tuner_pack_word(uint64_t from, uint32_t before, uint32_t after)
{
    return from << 2 * CODE_BITS | (uint64_t)before << CODE_BITS | after;
}
uint32_t tuner_code_at(uint64_t word, uint64_t operation)
{
    int64_t ahead = (int64_t)((operation << 2 * CODE_BITS) - (word & ~tuner_pack_word(0, CODE_MASK, CODE_MASK)));
    return (uint32_t)((ahead >= 0 ? word : word >> CODE_BITS) & CODE_MASK);
}
/* Reads the shared word. */
static uint64_t tuner_read_word(const struct tuner *tuner)
{
    return atomic_load_explicit(&tuner->line->word, memory_order_relaxed);
}
/* Returns the code that an operation runs by the shared word as it is now. */
static uint32_t tuner_read_code(const struct tuner *tuner, uint64_t operation)
{
    return tuner_code_at(tuner_read_word(tuner), operation);
}
/* True if every rank, however far ahead or behind, reads the same code, so that a new word changes nothing before its
   operation. */
static bool tuner_may_write_word(const struct tuner *tuner, const struct moment *now)
{
    return tuner_read_code(tuner, now->operation - now->behind) == tuner_read_code(tuner, now->operation + now->ahead);
}
/* Writes the shared word, so that all ranks run the code from the first operation that no rank can have begun. Returns
   the number of that operation. */
static uint64_t tuner_schedule_code(struct tuner *tuner, const struct moment *now, uint32_t code)
{
    uint64_t from = now->operation + now->ahead + 1,
             word = tuner_pack_word(from, tuner_read_code(tuner, now->operation), code);
    atomic_store_explicit(&tuner->line->word, word, memory_order_release);
    return from;
}

/* ---- kinds of calls ---- */
/* Returns the row of `measures` for the message size. */
static const struct measure *tuner_get_measure(const struct tuner *tuner)
{
    const struct measure *measure = measures;
    while (tuner->key.message_bytes >= measure->max_bytes) measure++;
    return measure;
}
uint32_t tuner_count_call(struct tuner *tuner, uint64_t operation, bool *is_watched)
{
    struct tuner_line *line = tuner->line;
    uint64_t from = atomic_load_explicit(&line->survey_from, memory_order_acquire), entry = ++tuner->number - from;
    uint32_t code = from && entry < SURVEY_CALLS ? atomic_load_explicit(&line->survey[entry], memory_order_acquire) : 0;
    int watch = tuner_get_measure(tuner)->watch;
    *is_watched = code || (watch && (tuner->number & (uint64_t)(watch - 1)) == 0);
    if (code) return code & ~SURVEY_ENTRY;
    return tuner_code_at(atomic_load_explicit(&line->word, memory_order_acquire), operation);
}
/* The decider is a rank that receives a result and so waits for other ranks. If every rank does, it is rank 0. */
int tuner_get_decider(const struct tuner_key *key, int ranks)
{
    if (key->collective == REDUCE || key->collective == GATHER) return key->root;
    return key->collective == BROADCAST || key->collective == SCATTER ? (key->root + 1) % ranks : 0;
}
/* Returns the placement-dependent variant that the choice is, or 0 for any other choice: LATE_SELECTION_VARIANT, or
   READ_VARIANT if it reads tensors in place although they were not predicted to be open. */
static int tuner_find_placement_variant(const struct tuner *tuner, const struct choice *choice)
{
    if (choice->selects_late) return LATE_SELECTION_VARIANT;
    return choice->reads_private && !placement_is_open(tuner->question.placement) ? READ_VARIANT : 0;
}
/* True if the choice is a placement-dependent variant. */
static bool tuner_choice_is_dependent(const struct tuner *tuner, const struct choice *choice)
{
    return tuner_find_placement_variant(tuner, choice) != 0;
}
/* Returns the question, with the placement that the incumbent's variants are made for. */
static struct question tuner_get_question(const struct tuner *tuner)
{
    struct question question = tuner->question;
    if (tuner_choice_is_dependent(tuner, &tuner->incumbent.choice)) question.placement = tuner->placement.seen;
    return question;
}
/* Makes the candidate the incumbent. If the candidate is placement-dependent and the old incumbent is not, keeps the
   old one as placement.fallback. */
static void tuner_promote_candidate(struct tuner *tuner)
{
    if (!tuner_choice_is_dependent(tuner, &tuner->incumbent.choice)
        && tuner_choice_is_dependent(tuner, &tuner->candidate.choice))
        tuner->placement.fallback = tuner->incumbent;
    tuner->incumbent = tuner->candidate;
    watch_reset(&tuner->watch);
}
/* Skips a variant for one round of all variants, then for two, for four, and so on. */
static void tuner_skip_variant(struct tuner *tuner, int variant)
{
    unsigned char rounds = tuner->skips[variant].rounds;
    rounds = rounds ? (unsigned char)(rounds < MOST_ROUNDS ? 2 * rounds : MOST_ROUNDS) : 1;
    tuner->skips[variant].rounds = tuner->skips[variant].left = rounds;
}
/* Ends the test, if one runs, without a result. */
static void tuner_abort_test(struct tuner *tuner)
{
    tuner->block.number = -1;
    tuner->block.change = 0;
}
/* Ends the survey, if one runs, without a result. */
static void tuner_abort_survey(struct tuner *tuner)
{
    survey_abort(&tuner->survey);
    watch_reset(&tuner->watch);
}
void tuner_set_placement(struct tuner *tuner, const struct question *question, const struct choice *predicted)
{
    if (tuner->predicted.algorithm && tuner->question.placement == question->placement) return;
    tuner->question = *question;
    tuner->question.message_bytes = tuner->key.message_bytes;
    tuner->predicted = *predicted;
    tuner->incumbent = (struct candidate){ .choice = *predicted };
    tuner->next_search = tuner->calls + (uint64_t)tuner_get_measure(tuner)->first;
    tuner->survey.next_planned = tuner->number + SURVEY_EVERY * (uint64_t)tuner_get_measure(tuner)->watch;
    tuner->next_variant = 0;
    memset(tuner->skips, 0, sizeof tuner->skips);
    tuner_abort_test(tuner);
    tuner_abort_survey(tuner);
}
/* If the placement does not allow the placement-dependent variant that runs, skips the variant for some rounds, ends
   the test, and makes placement.fallback the incumbent again if the variant was the incumbent. */
void tuner_report_placement(struct tuner *tuner, enum placement_kind placement)
{
    int incumbent_variant = tuner_find_placement_variant(tuner, &tuner->incumbent.choice),
        candidate_variant =
            tuner->block.number >= 0 ? tuner_find_placement_variant(tuner, &tuner->candidate.choice) : 0;
    int variant = incumbent_variant ? incumbent_variant : candidate_variant;
    if (!variant) return;
    bool allows = variant == LATE_SELECTION_VARIANT ? placement_is_shared(placement) : placement_is_open(placement);
    if (allows) { tuner->placement.seen = placement; return; }
    if (incumbent_variant) {
        tuner->incumbent = tuner->placement.fallback;
        tuner_abort_survey(tuner);
    }
    tuner_skip_variant(tuner, variant);
    tuner_abort_test(tuner);
}

/* ---- an A/B test ---- */
uint64_t tuner_get_batch(const struct tuner *tuner) { return (uint64_t)tuner_get_measure(tuner)->batch; }
/* Returns what a block runs: the incumbent in even blocks, the candidate in odd ones. */
static struct candidate *tuner_block_candidate(struct tuner *tuner, int block)
{
    return block % 2 ? &tuner->candidate : &tuner->incumbent;
}
/* Returns the code for a block in which all ranks record times. */
static uint32_t tuner_timed_code(struct tuner *tuner, int block)
{
    return tuner_block_candidate(tuner, block)->code | TUNER_TIMED;
}
/* Sets up a block of the A/B test that begins at operation `start`. Its count is negative at first: warm-up calls. */
static void tuner_begin_block(struct tuner *tuner, int block, uint64_t start)
{
    tuner->block.number = block;
    tuner->block.begun = tuner->calls;
    tuner->block.start = start;
    tuner->block.calls_without_time = 0;
    tuner->block.count = -tuner_get_measure(tuner)->warm;
    tuner->block.change = 0;
}
/* Logs the least times of incumbent and candidate. */
static void tuner_log_test(const struct tuner *tuner)
{
    char incumbent[CHOICE_TEXT_BYTES], candidate[CHOICE_TEXT_BYTES];
    choice_format(&tuner->incumbent.choice, incumbent);
    choice_format(&tuner->candidate.choice, candidate);
    LOG(DEBUG, "%s of %zu bytes: %s took %.2f us, %s %.2f us", collective_name(tuner->key.collective),
        tuner->key.message_bytes, incumbent, tuner->incumbent.ns / 1e3, candidate, tuner->candidate.ns / 1e3);
}
/* True if the candidate is faster than the incumbent, or about as fast with ordinary stores, which vary less. The
   incumbent, whose stores change at run time (execute/pace.h), may have used ordinary stores during the test, too. */
static bool tuner_candidate_wins(const struct tuner *tuner)
{
    const struct candidate *incumbent = &tuner->incumbent, *candidate = &tuner->candidate;
    bool steadier = candidate->choice.ordinary_stores && !incumbent->choice.ordinary_stores;
    return steadier ? candidate->ns < AS_GOOD * incumbent->ns
                    : ab_test_is_won(incumbent->ns, candidate->ns, candidate->max_ns);
}
/* Ends a test: promotes the candidate if it has won. A test that is not complete ended early because the candidate was
   hopeless. */
static void tuner_end_test(struct tuner *tuner, bool is_complete)
{
    unsigned char rounds = tuner->skips[tuner->tested_variant].rounds;
    tuner_log_test(tuner);
    /* A hopeless variant is skipped for longer. A completed test ends that, or halves it for a placement-dependent
       variant, because the test may not have paid off. */
    if (!is_complete) tuner_skip_variant(tuner, tuner->tested_variant);
    else
        tuner->skips[tuner->tested_variant].rounds =
            tuner_choice_is_dependent(tuner, &tuner->candidate.choice) ? rounds / 2 : 0;
    tuner->budget.lost += tuner->budget.searched_ns / tuner->incumbent.ns;
    tuner->budget.searched_ns = 0;
    if (is_complete && tuner_candidate_wins(tuner)) tuner_promote_candidate(tuner);
    tuner->next_search = tuner->calls;
    tuner_abort_test(tuner);
}
/* Returns by how much a call of `ns` ns took longer than the incumbent, in calls of the incumbent. The limit keeps an
   interruption, or the making of a plan in a first call, from counting in full. */
static double tuner_excess_calls(double ns, const struct tuner *tuner)
{
    return fmin(fmax(ns / tuner->incumbent.ns - 1, 0), MOST_LOST);
}
/* Returns the median of the times of the block in ns. */
static double tuner_block_median(struct tuner *tuner)
{
    return doubles_sort_and_get(tuner->block.sample, tuner->block.count, tuner->block.count / 2);
}
/* Ends a block: records its median, adds its cost to the lost time, and begins the next block or ends the test. */
static void tuner_end_block(struct tuner *tuner)
{
    struct candidate *tested = tuner_block_candidate(tuner, tuner->block.number);
    double ns = tuner_block_median(tuner);
    uint64_t calls = tuner->calls - tuner->block.begun;
    if (tuner->block.number == 0) tested->ns = tested->max_ns = 0;
    if (tested->ns == 0 || ns < tested->ns) tested->ns = ns;
    if (ns > tested->max_ns) tested->max_ns = ns;
    tuner->budget.lost += (double)calls * TIMED_NS / tuner->incumbent.ns;
    if (tested == &tuner->candidate)
        tuner->budget.lost +=
            tuner_excess_calls(tuner->block.first_ns, tuner) + (double)calls * tuner_excess_calls(ns, tuner);
    bool is_hopeless = tuner->block.number == 1 && ab_test_is_hopeless(tuner->incumbent.ns, tuner->candidate.ns, false);
    if (is_hopeless || tuner->block.number == BLOCKS - 1) tuner_end_test(tuner, !is_hopeless);
    else tuner_begin_block(tuner, tuner->block.number + 1, tuner->block.change);
}
/* True if the block has enough times, or few that show the candidate to be hopeless. */
static bool tuner_block_is_complete(struct tuner *tuner)
{
    /* A time was read since the last call. */
    bool has_new_time = tuner->block.calls_without_time == 1;
    bool may_be_hopeless = tuner->block.number == 1 && tuner->block.count >= AB_TEST_FEW_SAMPLES && has_new_time;
    return tuner->block.count >= tuner_get_measure(tuner)->enough
        || (may_be_hopeless && ab_test_is_hopeless(tuner->incumbent.ns, tuner_block_median(tuner), true));
}
/* Continues the test in the call that begins: if its block is complete and the word may be written, schedules the next
   block; when that begins, ends this one. */
static void tuner_continue_test(struct tuner *tuner, const struct moment *now)
{
    if (tuner->block.change && now->operation >= tuner->block.change) tuner_end_block(tuner);
    if (tuner->block.number < 0) return;
    bool runs_another = now->operation >= tuner->block.start
        && tuner_read_code(tuner, now->operation) != tuner_timed_code(tuner, tuner->block.number);
    /* The test ends if times stay unknown, or if the word is so old that its operation number has wrapped. */
    if (++tuner->block.calls_without_time > MAX_CALLS_WITHOUT_TIME || runs_another) {
        tuner->next_search = tuner->calls + LONG_PAUSE;
        tuner_abort_test(tuner);
        return;
    }
    if (!tuner->block.change && tuner_block_is_complete(tuner) && tuner_may_write_word(tuner, now))
        tuner->block.change = tuner_schedule_code(tuner, now, tuner_timed_code(tuner, tuner->block.number + 1));
}

/* ---- what to try, and when ---- */
/* True if the time lost by tests and surveys so far allows another one. */
static bool tuner_has_budget(const struct tuner *tuner)
{
    double calls = (double)(tuner->calls - tuner->budget.opened),
           early_calls = tuner->incumbent.ns > 0 ? fmax(EARLY_CALLS, EARLY_NS / tuner->incumbent.ns) : EARLY_CALLS;
    return tuner->budget.lost <= fmin(tuner_get_measure(tuner)->early_share * calls, early_calls + LATER_SHARE * calls);
}
/* Sets *out to a variant of the incumbent, or to placement.fallback if the variant is FALL_BACK. If the incumbent is
   itself a placement-dependent variant, its variants are made for the placement that was seen. *exists is false if the
   variant is impossible, has no effect or costs too much. */
static tutti_status tuner_make_variant(const struct tuner *tuner, const struct variant_limits *limits, int variant,
    struct choice *out, bool *exists)
{
    struct question question = tuner_get_question(tuner);
    if (variant != FALL_BACK)
        return choice_make_variant(limits, &question, &tuner->incumbent.choice, variant, out, exists);
    *out = tuner->placement.fallback.choice;
    *exists = true;
    return TUTTI_OK;
}
/* Sets the candidate to the next variant of the incumbent that exists and is not skipped. In place of the variant that
   the incumbent is, it takes FALL_BACK. False: all are skipped or impossible, or memory is lacking. */
static bool tuner_find_candidate(struct tuner *tuner, const struct variant_limits *limits)
{
    int dependent_variant = tuner_find_placement_variant(tuner, &tuner->incumbent.choice);
    if (!dependent_variant) tuner->placement.seen = limits->possible;
    for (int i = 0; i < VARIANTS; i++) {
        bool exists = false;
        int variant = dependent_variant && tuner->next_variant == dependent_variant ? FALL_BACK : tuner->next_variant;
        tuner->next_variant = (tuner->next_variant + 1) % VARIANTS;
        struct choice found;
        if (tuner_make_variant(tuner, limits, variant, &found, &exists) != TUTTI_OK) return false;
        if (!exists || (tuner->skips[variant].left && tuner->skips[variant].left--)) continue;
        tuner->tested_variant = variant;
        tuner->candidate = (struct candidate){ .choice = found, .code = choice_encode(&found) };
        return true;
    }
    return false;
}
/* True if no test runs and call number `call` may look for a candidate. */
static bool tuner_search_is_due(const struct tuner *tuner, uint64_t call)
{
    return tuner->block.number < 0 && call >= tuner->next_search;
}
bool tuner_may_search(const struct tuners *tuners, const struct tuner *tuner)
{
    return tuner_search_is_due(tuner, tuner->calls + 1) && !tuners_are_stopped(tuners, tuner->key.collective);
}
/* For tests of this library (TUTTI_TUNER=2): makes the next variant of the incumbent the incumbent, untimed. */
static void tuner_run_next_variant(struct tuner *tuner, const struct moment *now, const struct variant_limits *limits)
{
    if (!tuner_may_write_word(tuner, now) || !tuner_find_candidate(tuner, limits)) return;
    tuner_promote_candidate(tuner);
    tuner_schedule_code(tuner, now, tuner->incumbent.code);
}
/* Writes the word, once it may, so that all ranks run the incumbent again. Returns true if they run it already. */
static bool tuner_restore_incumbent(struct tuner *tuner, const struct moment *now)
{
    if (!tuner_may_write_word(tuner, now)) return false;
    if (tuner_read_code(tuner, now->operation) == tuner->incumbent.code) return true;
    tuner_schedule_code(tuner, now, tuner->incumbent.code);
    return false;
}
/* Searches for the next candidate if the budget allows it. */
static bool tuner_search_candidate(struct tuner *tuner, const struct variant_limits *limits)
{
    if (!tuner_has_budget(tuner)) return false;
    int64_t begin = clock_ns();
    bool found = tuner_find_candidate(tuner, limits);
    tuner->budget.searched_ns += (double)(clock_ns() - begin);
    return found;
}
/* Starts an A/B test of the next candidate if all ranks run the incumbent, a search is due, the budget allows it, and a
   candidate exists. */
static void tuner_start_test(struct tuner *tuner, const struct moment *now, const struct variant_limits *limits)
{
    if (!tuner_restore_incumbent(tuner, now) || !tuner_search_is_due(tuner, tuner->calls)) return;
    tuner->next_search = tuner->calls + (uint64_t)tuner_get_measure(tuner)->pause;
    if (!tuner->is_proposed && !tuner_search_candidate(tuner, limits)) return;
    if (tuner->is_proposed) tuner->tested_variant = PROPOSED;
    tuner->is_proposed = false;
    tuner_begin_block(tuner, 0, tuner_schedule_code(tuner, now, tuner_timed_code(tuner, 0)));
}
void tuner_add_watched_time(struct tuner *tuner, uint32_t code, double ns)
{
    if (tuner->survey.is_running) survey_add_time(&tuner->survey, &tuner->watch, tuner->number, code, ns);
    else if (code == tuner->incumbent.code) watch_add(&tuner->watch, ns);
}

/* ---- a survey ---- */
/* True if the machine has changed, if the last survey asks for another one, or if the last one was long ago. */
static bool tuner_survey_is_due(const struct tuner *tuner)
{
    const struct survey *survey = &tuner->survey;
    bool changed = watch_has_changed(&tuner->watch) && tuner->number >= survey->next_call,
         planned = tuner->number >= survey->next_planned && tuner->block.number < 0 && watch_knows(&tuner->watch)
        && tuner_has_budget(tuner);
    return changed || survey->follows || planned;
}
/* Decides a survey that is complete. If the machine has changed, the winner becomes the incumbent, and the A/B tests
   start again with a new budget. If it has not, the next A/B test decides about the winner. */
static void tuner_finish_survey(struct tuner *tuner, const struct survey_call *call)
{
    struct survey *survey = &tuner->survey;
    bool wins = survey_decide(survey, call, tuner->watch.usual_ns);
    if (!survey->is_alarmed) tuner->budget.lost += survey->lost;
    if (wins) {
        tuner->candidate = survey->best;
        tuner->is_proposed = !survey->is_alarmed;
        tuner->next_search = tuner->calls;
    }
    if (wins && survey->is_alarmed) {
        tuner_promote_candidate(tuner);
        memset(tuner->skips, 0, sizeof tuner->skips);
        tuner->budget.opened = tuner->calls;
        tuner->budget.lost = 0;
    }
    if (survey->is_alarmed) watch_reset(&tuner->watch);
}
/* Continues the survey in the call that begins, or starts one. Returns true while one runs; then no test may run. */
static bool tuner_continue_survey(struct tuner *tuner, const struct moment *now, const struct variant_limits *limits)
{
    struct survey *survey = &tuner->survey;
    struct question question = tuner_get_question(tuner);
    struct survey_call call = { tuner->number + 1, now->ahead, now->behind, &tuner->incumbent, &tuner->predicted,
        &question, limits, (uint64_t)tuner_get_measure(tuner)->watch };
    if (!survey->is_running && survey_may_start(survey, &call)) survey_start(survey, &tuner->watch, &call);
    if (!survey->is_running) return false;
    if (survey_is_complete(survey, &call)) tuner_finish_survey(tuner, &call);
    survey_write_due_entries(survey, &call);
    if (survey->is_decided && tuner_restore_incumbent(tuner, now)) survey->is_running = false;
    return survey->is_running;
}

/* ---- calls ---- */
/* Runs the predicted choice again, for good, because a rank asks for an algorithm. */
static void tuner_stop(struct tuner *tuner, const struct moment *now)
{
    struct survey_call call = { .number = tuner->number + 1, .behind = now->behind };
    tuner->incumbent = (struct candidate){ .choice = tuner->predicted };
    tuner_abort_test(tuner);
    survey_retire(&tuner->survey, &call);
    tuner_restore_incumbent(tuner, now);
}
void tuner_begin_call(struct tuners *tuners, struct tuner *tuner, const struct moment *now,
    const struct variant_limits *limits)
{
    /* Without a predicted choice there is no incumbent yet. */
    if (!tuner->predicted.algorithm || tuners->mode == TUNER_OFF) return;
    tuner->calls++;
    if (tuners_are_stopped(tuners, tuner->key.collective)) { tuner_stop(tuner, now); return; }
    if (tuners->mode == TUNER_TAKES_ANY_VARIANT) { tuner_run_next_variant(tuner, now, limits); return; }
    bool surveys = tuner->survey.is_running || tuner_survey_is_due(tuner);
    if (surveys && tuner_continue_survey(tuner, now, limits)) { tuner_abort_test(tuner); return; }
    if (tuner->block.number >= 0) tuner_continue_test(tuner, now);
    if (tuner->block.number < 0) tuner_start_test(tuner, now, limits);
}
void tuner_add_time(struct tuner *tuner, uint64_t operation, double ns)
{
    struct tuner_block *block = &tuner->block;
    if (block->number < 0 || operation < block->start || (block->change && operation >= block->change)) return;
    block->calls_without_time = 0;
    if (block->count == -tuner_get_measure(tuner)->warm) block->first_ns = ns;
    if (block->count < 0) block->count++;
    else if (block->count < TUNER_SAMPLES) block->sample[block->count++] = ns;
}
