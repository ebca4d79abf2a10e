/* The decider's side of an A/B test. In each call it continues the current block, or begins the next one by writing the
   shared word, or starts a test of the next candidate. All of this stays within a budget of lost time. */
/* The decider's side of an A/B test. In each call it continues the current block, or begins the next one by writing the
   shared word, or starts a test of the next candidate. All of this stays within a budget of lost time. */
#include "backend/tuning/tuner.h"
#include "backend/base/ab_test.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/base/settings.h"
#include "backend/base/sorted.h"
#include "backend/base/status.h"
#include "backend/collectives/collectives.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The most calls of a block in a row whose times stay unknown. */
enum { MOST_SILENT = 64 };
/* If two choices are equally fast, all blocks of one are better than all of the other by chance once in 20 times. */
enum { BLOCKS = 6, MOST_ROUNDS = 16, LONG_PAUSE = 64 * MOST_SILENT };
/* A program makes few long calls; between short ones some ns decide. Apart from `below` (bytes), the unit is calls:
   `first` before the first test, `pause` between searches, `warm` unmeasured and `enough` measured ones of a block, and
   `batch` whose times are read together. */
static const struct measure {
    size_t below;
    int first, pause, warm, enough, batch;
} measures[] = {
    { 128 << 10, 32, 64, 4, 12, 8 },
    { 8 << 20, 32, 64, 4, 8, 1 },
    { SIZE_MAX, 8, 8, 1, 4, 1 },
};
/* Returns from a placement-dependent variant to the incumbent before it. */
enum { GO_BACK = VARIANTS };
static const double AS_GOOD = 1.02;
static const double EARLY_SHARE = 0.1, LATER_SHARE = 0.01, EARLY_CALLS = 64, EARLY_NS = 500e3, MOST_LOST = 20;
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
static uint64_t tuner_read_word(const struct tuner *tuner)
{
    return atomic_load_explicit(tuner->word, memory_order_relaxed);
}
static uint32_t tuner_read_code(const struct tuner *tuner, uint64_t operation)
{
    return tuner_code_at(tuner_read_word(tuner), operation);
}
/* True if every rank, however far ahead or behind, reads the same code. */
static bool tuner_may_write_word(const struct tuner *tuner, const struct moment *now)
{
    return tuner_read_code(tuner, now->operation - now->behind) == tuner_read_code(tuner, now->operation + now->ahead);
}
/* Lets all ranks run the code from the returned operation on. */
static uint64_t tuner_schedule_code(struct tuner *tuner, const struct moment *now, uint32_t code)
{
    uint64_t from = now->operation + now->ahead + 1,
             word = tuner_pack_word(from, tuner_read_code(tuner, now->operation), code);
    atomic_store_explicit(tuner->word, word, memory_order_release);
    return from;
}

/* ---- kinds of calls ---- */
static const struct measure *tuner_get_measure(const struct tuner *tuner)
{
    const struct measure *m = measures;
    while (tuner->key.message_bytes >= m->below) m++;
    return m;
}
static bool tuner_key_is_same(const struct tuner_key *a, const struct tuner_key *b)
{
    return a->collective == b->collective && a->root == b->root && a->stage_inputs == b->stage_inputs
        && a->message_bytes == b->message_bytes;
}
void tuners_init(struct tuners *tuners, struct tuning *tuning, bool crowded)
{
    int64_t setting = settings_get()->tuner;
    tuners->tuning = tuning;
    tuners->trying = crowded && setting == TRIES ? TRIES_NOTHING : (enum trying)setting;
}
tutti_status tuners_find_or_create(struct tuners *tuners, const struct tuner_key *key, struct tuner **out)
{
    int i = 0;
    while (i < tuners->count && !tuner_key_is_same(&tuners->of[i]->key, key)) i++;
    *out = i < tuners->count ? tuners->of[i] : NULL;
    if (i < tuners->count || i == MOST_TUNERS) return TUTTI_OK;
    struct tuner *made = memory_alloc_zeroed(1, sizeof *made);
    if (!made) return status_fail(TUTTI_NO_MEMORY, "no memory for a tuner");
    *made = (struct tuner){ .key = *key, .word = &tuners->tuning->word[i], .block = -1 };
    *out = tuners->of[tuners->count++] = made;
    return TUTTI_OK;
}
void tuners_finish(struct tuners *tuners)
{
    for (int i = 0; i < tuners->count; i++) free(tuners->of[i]);
    tuners->count = 0;
}
static bool tuners_are_stopped(const struct tuners *tuners, enum collective collective)
{
    return atomic_load_explicit(&tuners->tuning->asked, memory_order_relaxed) >> collective & 1;
}
void tuners_stop_collective(struct tuners *tuners, enum collective collective)
{
    if (!tuners_are_stopped(tuners, collective)) atomic_fetch_or(&tuners->tuning->asked, 1u << collective);
}
/* Returns a rank that has the result last. If all ranks have it, that is rank 0. */
int tuner_get_decider(const struct tuner_key *key, int ranks)
{
    if (key->collective == REDUCE || key->collective == GATHER) return key->root;
    return key->collective == BROADCAST || key->collective == SCATTER ? (key->root + 1) % ranks : 0;
}
/* Returns the placement-dependent variant that this choice uses against its cost, or 0. */
static int tuner_placement_variant(const struct tuner *tuner, const struct choice *choice)
{
    if (choice->selects_late) return LATE_SELECTION_VARIANT;
    return choice->reads_private && !placement_is_open(tuner->question.placement) ? READ_VARIANT : 0;
}
/* Makes `that` the incumbent. */
static void tuner_promote_candidate(struct tuner *tuner)
{
    if (!tuner_placement_variant(tuner, &tuner->this.choice) && tuner_placement_variant(tuner, &tuner->that.choice))
        tuner->look.before = tuner->this;
    tuner->this = tuner->that;
}
/* Skips a variant for one round of all variants, then for two, for four, and so on. */
static void tuner_skip_variant(struct tuner *tuner, int variant)
{
    unsigned char rounds = tuner->skips[variant].rounds;
    rounds = rounds ? (unsigned char)(rounds < MOST_ROUNDS ? 2 * rounds : MOST_ROUNDS) : 1;
    tuner->skips[variant].rounds = tuner->skips[variant].left = rounds;
}
static void tuner_abort_test(struct tuner *tuner)
{
    tuner->block = -1;
    tuner->change = 0;
}
void tuner_set_placement(struct tuner *tuner, const struct question *question, const struct choice *predicted)
{
    if (tuner->predicted.algorithm && tuner->question.placement == question->placement) return;
    tuner->question = *question;
    tuner->question.message_bytes = tuner->key.message_bytes;
    tuner->predicted = *predicted;
    tuner->this = (struct candidate){ .choice = *predicted };
    tuner->next = tuner->calls + (uint64_t)tuner_get_measure(tuner)->first;
    tuner->move = 0;
    memset(tuner->skips, 0, sizeof tuner->skips);
    tuner_abort_test(tuner);
}
/* A placement-dependent variant is valid only while tensors have that placement. */
void tuner_report_placement(struct tuner *tuner, enum placement_kind placement)
{
    int this = tuner_placement_variant(tuner, &tuner->this.choice),
        that = tuner->block >= 0 ? tuner_placement_variant(tuner, &tuner->that.choice) : 0;
    int variant = this ? this : that;
    if (!variant) return;
    bool allows = variant == LATE_SELECTION_VARIANT ? placement_is_shared(placement) : placement_is_open(placement);
    if (allows) { tuner->look.seen = placement; return; }
    if (this) tuner->this = tuner->look.before;
    tuner_skip_variant(tuner, variant);
    tuner_abort_test(tuner);
}

/* ---- an A/B test ---- */
uint64_t tuner_get_batch(const struct tuner *tuner) { return (uint64_t)tuner_get_measure(tuner)->batch; }
static struct candidate *tuner_block_candidate(struct tuner *tuner, int block)
{
    return block % 2 ? &tuner->that : &tuner->this;
}
static uint32_t tuner_timed_code(struct tuner *tuner, int block)
{
    return tuner_block_candidate(tuner, block)->code | TUNER_TIMED;
}
/* Begins a block of the A/B test at call `start`. Negative `count`: calls that warm up and are not timed. */
static void tuner_begin_block(struct tuner *tuner, int block, uint64_t start)
{
    tuner->block = block;
    tuner->begun = tuner->calls;
    tuner->start = start;
    tuner->silent = 0;
    tuner->count = -tuner_get_measure(tuner)->warm;
    tuner->change = 0;
}
/* Logs the times of both choices. */
static void tuner_log_test(const struct tuner *tuner)
{
    char this[CHOICE_TEXT_BYTES], that[CHOICE_TEXT_BYTES];
    choice_format(&tuner->this.choice, this);
    choice_format(&tuner->that.choice, that);
    LOG(DEBUG, "%s of %zu bytes: %s took %.2f us, %s %.2f us", collective_name(tuner->key.collective),
        tuner->key.message_bytes, this, tuner->this.ns / 1e3, that, tuner->that.ns / 1e3);
}
/* Prefers ordinary stores. The incumbent, whose stores change at run time (execute/pace.h), may have used ordinary
   stores during the test, too. */
static bool tuner_candidate_wins(const struct tuner *tuner)
{
    const struct candidate *this = &tuner->this, *that = &tuner->that;
    bool steadier = that->choice.ordinary && !this->choice.ordinary;
    return steadier ? that->ns < AS_GOOD * this->ns : ab_test_is_won(this->ns, that->ns, that->most_ns);
}
/* Ends a test: promotes the candidate if it won, else skips the variant for a while. */
static void tuner_end_test(struct tuner *tuner, bool is_complete)
{
    unsigned char rounds = tuner->skips[tuner->tried].rounds;
    tuner_log_test(tuner);
    /* A hopeless variant is skipped for longer. A completed test ends that, or halves it for a placement-dependent
       variant, because the test may not have paid off. */
    if (!is_complete) tuner_skip_variant(tuner, tuner->tried);
    else tuner->skips[tuner->tried].rounds = tuner_placement_variant(tuner, &tuner->that.choice) ? rounds / 2 : 0;
    tuner->lost += tuner->searched_ns / tuner->this.ns;
    tuner->searched_ns = 0;
    if (is_complete && tuner_candidate_wins(tuner)) tuner_promote_candidate(tuner);
    tuner->next = tuner->calls;
    tuner_abort_test(tuner);
}
/* Returns the excess time in calls of the incumbent. The limit keeps an interruption, of a call that may also make a
   plan, from counting in full. */
static double tuner_excess_calls(double ns, const struct tuner *tuner)
{
    double calls = ns / tuner->this.ns - 1;
    return calls < 0 ? 0 : calls < MOST_LOST ? calls : MOST_LOST;
}
static double tuner_block_median(struct tuner *tuner)
{
    return doubles_sort_and_get(tuner->sample, tuner->count, tuner->count / 2);
}
/* Ends a block: keeps its median, charges its cost to the budget, and begins the next block or ends the test. */
static void tuner_end_block(struct tuner *tuner)
{
    struct candidate *c = tuner_block_candidate(tuner, tuner->block);
    double ns = tuner_block_median(tuner);
    uint64_t calls = tuner->calls - tuner->begun;
    if (tuner->block == 0) c->ns = c->most_ns = 0;
    if (c->ns == 0 || ns < c->ns) c->ns = ns;
    if (ns > c->most_ns) c->most_ns = ns;
    tuner->lost += (double)calls * TIMED_NS / tuner->this.ns;
    if (c == &tuner->that)
        tuner->lost += tuner_excess_calls(tuner->first_ns, tuner) + (double)calls * tuner_excess_calls(ns, tuner);
    bool hopeless = tuner->block == 1 && ab_test_is_hopeless(tuner->this.ns, tuner->that.ns, false);
    if (hopeless || tuner->block == BLOCKS - 1) tuner_end_test(tuner, !hopeless);
    else tuner_begin_block(tuner, tuner->block + 1, tuner->change);
}
/* True if the block has enough times, or few that show the candidate to be hopeless. */
static bool tuner_block_is_complete(struct tuner *tuner)
{
    /* A time was read since the last call. */
    bool is_told = tuner->silent == 1;
    bool may_be_hopeless = tuner->block == 1 && tuner->count >= AB_TEST_FEW_SAMPLES && is_told;
    return tuner->count >= tuner_get_measure(tuner)->enough
        || (may_be_hopeless && ab_test_is_hopeless(tuner->this.ns, tuner_block_median(tuner), true));
}
/* A block continues until the next one begins: when it is long enough and the word may be written again. */
static void tuner_continue_test(struct tuner *tuner, const struct moment *now)
{
    if (tuner->change && now->operation >= tuner->change) tuner_end_block(tuner);
    if (tuner->block < 0) return;
    bool runs_another = now->operation >= tuner->start
        && tuner_read_code(tuner, now->operation) != tuner_timed_code(tuner, tuner->block);
    /* The test ends if times stay unknown, or if the word is so old that its operation number has wrapped. */
    if (++tuner->silent > MOST_SILENT || runs_another) {
        tuner->next = tuner->calls + LONG_PAUSE;
        tuner_abort_test(tuner);
        return;
    }
    if (!tuner->change && tuner_block_is_complete(tuner) && tuner_may_write_word(tuner, now))
        tuner->change = tuner_schedule_code(tuner, now, tuner_timed_code(tuner, tuner->block + 1));
}

/* ---- what to try, and when ---- */
static bool tuner_has_budget(const struct tuner *tuner)
{
    double calls = (double)tuner->calls,
           once = tuner->this.ns > 0 ? fmax(EARLY_CALLS, EARLY_NS / tuner->this.ns) : EARLY_CALLS;
    return tuner->lost <= fmin(EARLY_SHARE * calls, once + LATER_SHARE * calls);
}
/* Makes a variant of the incumbent. */
static tutti_status tuner_make_variant(const struct tuner *tuner, const struct variant_limits *limits, int variant,
    struct choice *out, bool *exists)
{
    struct question question = tuner->question;
    if (tuner_placement_variant(tuner, &tuner->this.choice)) question.placement = tuner->look.seen;
    if (variant != GO_BACK) return choice_make_variant(limits, &question, &tuner->this.choice, variant, out, exists);
    *out = tuner->look.before.choice;
    *exists = true;
    return TUTTI_OK;
}
/* Finds the next variant of the incumbent that exists and is not skipped. False: all are skipped or impossible. */
static bool tuner_find_candidate(struct tuner *tuner, const struct variant_limits *limits)
{
    int ventured = tuner_placement_variant(tuner, &tuner->this.choice);
    if (!ventured) tuner->look.seen = limits->could_be;
    for (int i = 0; i < VARIANTS; i++) {
        bool exists = false;
        int variant = ventured && tuner->move == ventured ? GO_BACK : tuner->move;
        tuner->move = (tuner->move + 1) % VARIANTS;
        struct choice found;
        if (tuner_make_variant(tuner, limits, variant, &found, &exists) != TUTTI_OK) return false;
        if (!exists || (tuner->skips[variant].left && tuner->skips[variant].left--)) continue;
        tuner->tried = variant;
        tuner->that = (struct candidate){ .choice = found, .code = choice_encode(&found) };
        return true;
    }
    return false;
}
static bool tuner_search_is_due(const struct tuner *tuner, uint64_t call)
{
    return tuner->block < 0 && call >= tuner->next;
}
bool tuner_may_search(const struct tuners *tuners, const struct tuner *tuner)
{
    return tuner_search_is_due(tuner, tuner->calls + 1) && !tuners_are_stopped(tuners, tuner->key.collective);
}
/* For tests: runs the next variant of the last choice, at any cost. */
static void tuner_run_next_variant(struct tuner *tuner, const struct moment *now, const struct variant_limits *limits)
{
    if (!tuner_may_write_word(tuner, now) || !tuner_find_candidate(tuner, limits)) return;
    tuner_promote_candidate(tuner);
    tuner_schedule_code(tuner, now, tuner->this.code);
}
/* True if all ranks run the incumbent. Otherwise it lets them run the incumbent again as soon as it can. */
static bool tuner_restores_incumbent(struct tuner *tuner, const struct moment *now)
{
    if (!tuner_may_write_word(tuner, now)) return false;
    if (tuner_read_code(tuner, now->operation) == tuner->this.code) return true;
    tuner_schedule_code(tuner, now, tuner->this.code);
    return false;
}
/* Starts an A/B test if one is due, the budget allows it, and a candidate exists. */
static void tuner_start_test(struct tuner *tuner, const struct moment *now, const struct variant_limits *limits)
{
    if (!tuner_restores_incumbent(tuner, now) || !tuner_search_is_due(tuner, tuner->calls)) return;
    tuner->next = tuner->calls + (uint64_t)tuner_get_measure(tuner)->pause;
    if (!tuner_has_budget(tuner)) return;
    int64_t begin = clock_ns();
    bool found = tuner_find_candidate(tuner, limits);
    tuner->searched_ns += (double)(clock_ns() - begin);
    if (!found) return;
    tuner_begin_block(tuner, 0, tuner_schedule_code(tuner, now, tuner_timed_code(tuner, 0)));
}
void tuner_begin_call(struct tuners *tuners, struct tuner *tuner, const struct moment *now,
    const struct variant_limits *limits)
{
    /* Without a predicted choice there is no incumbent yet. */
    if (!tuner->predicted.algorithm || tuners->trying == TRIES_NOTHING) return;
    tuner->calls++;
    if (tuners_are_stopped(tuners, tuner->key.collective)) {
        tuner->this = (struct candidate){ .choice = tuner->predicted };
        tuner_abort_test(tuner);
        tuner_restores_incumbent(tuner, now);
        return;
    }
    if (tuners->trying == TRIES_ANYTHING) { tuner_run_next_variant(tuner, now, limits); return; }
    if (tuner->block >= 0) tuner_continue_test(tuner, now);
    if (tuner->block < 0) tuner_start_test(tuner, now, limits);
}
void tuner_add_time(struct tuner *tuner, uint64_t operation, double ns)
{
    if (tuner->block < 0 || operation < tuner->start || (tuner->change && operation >= tuner->change)) return;
    tuner->silent = 0;
    if (tuner->count == -tuner_get_measure(tuner)->warm) tuner->first_ns = ns;
    if (tuner->count < 0) tuner->count++;
    else if (tuner->count < TUNER_SAMPLES) tuner->sample[tuner->count++] = ns;
}
