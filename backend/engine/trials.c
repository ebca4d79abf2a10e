#include "backend/engine/trials.h"
#include "backend/base/ab_test.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
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
   `first` before the first trial, `pause` between searches, `warm` unmeasured and `enough` measured ones of a block,
   and `batch` whose times are read together. */
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
static const uint64_t CODE_MASK = (1u << CODE_BITS) - 1;
uint64_t trial_word(uint64_t from, uint32_t before, uint32_t after)
{
    return from << 2 * CODE_BITS | (uint64_t)before << CODE_BITS | after;
}
uint32_t trial_code_at(uint64_t word, uint64_t operation)
{
    int64_t ahead = (int64_t)((operation << 2 * CODE_BITS) - (word & ~trial_word(0, CODE_MASK, CODE_MASK)));
    return (uint32_t)((ahead >= 0 ? word : word >> CODE_BITS) & CODE_MASK);
}
static uint64_t word_of(const struct trial *t) { return atomic_load_explicit(t->word, memory_order_relaxed); }
static uint32_t code_now(const struct trial *t, uint64_t operation) { return trial_code_at(word_of(t), operation); }
/* True if every rank, however far ahead or behind, reads the same code. */
static bool may_write(const struct trial *t, const struct moment *now)
{
    return code_now(t, now->operation - now->behind) == code_now(t, now->operation + now->ahead);
}
/* Lets all ranks run the code from the returned operation on. */
static uint64_t let_run(struct trial *t, const struct moment *now, uint32_t code)
{
    uint64_t from = now->operation + now->ahead + 1, word = trial_word(from, code_now(t, now->operation), code);
    atomic_store_explicit(t->word, word, memory_order_release);
    return from;
}

/* ---- kinds of calls ---- */
static const struct measure *measure_of(const struct trial *t)
{
    const struct measure *m = measures;
    while (t->key.message_bytes >= m->below) m++;
    return m;
}
static bool is_same(const struct trial_key *a, const struct trial_key *b)
{
    return a->family == b->family && a->root == b->root && a->stage_inputs == b->stage_inputs
        && a->message_bytes == b->message_bytes;
}
tutti_status trials_find(struct trials *trials, const struct trial_key *key, struct trial **out)
{
    int i = 0;
    while (i < trials->count && !is_same(&trials->of[i]->key, key)) i++;
    *out = i < trials->count ? trials->of[i] : NULL;
    if (i < trials->count || i == TRIALS) return TUTTI_OK;
    struct trial *made = memory_zeroed(1, sizeof *made);
    if (!made) return status_fail(TUTTI_NO_MEMORY, "no memory for the candidates of a trial");
    *made = (struct trial){ .key = *key, .word = &trials->tuning->word[i], .block = -1 };
    *out = trials->of[trials->count++] = made;
    return TUTTI_OK;
}
void trials_finish(struct trials *trials)
{
    for (int i = 0; i < trials->count; i++) free(trials->of[i]);
    trials->count = 0;
}
static bool is_stopped(const struct trials *trials, enum family family)
{
    return atomic_load_explicit(&trials->tuning->asked, memory_order_relaxed) >> family & 1;
}
void trials_stop(struct trials *trials, enum family family)
{
    if (!is_stopped(trials, family)) atomic_fetch_or(&trials->tuning->asked, 1u << family);
}
/* Returns a rank that has the result last. If all ranks have it, that is rank 0. */
int trial_decider(const struct trial_key *key, int ranks)
{
    if (key->family == REDUCE || key->family == GATHER) return key->root;
    return key->family == BROADCAST || key->family == SCATTER ? (key->root + 1) % ranks : 0;
}
/* Returns the placement-dependent variant that this choice uses against its price, or 0. */
static int choice_candidates(const struct trial *t, const struct choice *c)
{
    if (c->looks) return LOOK_VARIANT;
    return c->reads && !choice_is_open(t->question.placement) ? READ_VARIANT : 0;
}
/* Makes `that` the incumbent. */
static void candidate_prefer(struct trial *t)
{
    if (!choice_candidates(t, &t->this.choice) && choice_candidates(t, &t->that.choice)) t->look.before = t->this;
    t->this = t->that;
}
/* Skips a variant for one round of all variants, then for two, for four, and so on. */
static void variant_skip(struct trial *t, int variant)
{
    unsigned char rounds = t->skips[variant].rounds;
    rounds = rounds ? (unsigned char)(rounds < MOST_ROUNDS ? 2 * rounds : MOST_ROUNDS) : 1;
    t->skips[variant].rounds = t->skips[variant].left = rounds;
}
static void ab_test_give_up(struct trial *t)
{
    t->block = -1;
    t->change = 0;
}
void trial_is_of(struct trial *t, const struct question *question, const struct choice *priced)
{
    if (t->priced.algorithm && t->question.placement == question->placement) return;
    t->question = *question;
    t->question.message_bytes = t->key.message_bytes;
    t->priced = *priced;
    t->this = (struct candidate){ .choice = *priced };
    t->next = t->calls + (uint64_t)measure_of(t)->first;
    t->move = 0;
    memset(t->skips, 0, sizeof t->skips);
    ab_test_give_up(t);
}
/* A placement-dependent variant is valid only while tensors have that placement. */
void trial_has_seen(struct trial *t, enum placement_kind placement)
{
    int this = choice_candidates(t, &t->this.choice), that = t->block >= 0 ? choice_candidates(t, &t->that.choice) : 0;
    int variant = this ? this : that;
    if (!variant) return;
    bool allows = variant == LOOK_VARIANT ? choice_is_shared(placement) : choice_is_open(placement);
    if (allows) { t->look.seen = placement; return; }
    if (this) t->this = t->look.before;
    variant_skip(t, variant);
    ab_test_give_up(t);
}

/* ---- an A/B test ---- */
uint64_t trial_batch(const struct trial *t) { return (uint64_t)measure_of(t)->batch; }
static struct candidate *block_candidate(struct trial *t, int block) { return block % 2 ? &t->that : &t->this; }
static uint32_t timed_code(struct trial *t, int block) { return block_candidate(t, block)->code | TRIAL_TIMED; }
static void begin_block(struct trial *t, int block, uint64_t start)
{
    t->block = block;
    t->begun = t->calls;
    t->start = start;
    t->silent = 0;
    t->count = -measure_of(t)->warm;
    t->change = 0;
}
static void ab_test_log(const struct trial *t)
{
    char this[CHOICE_WORDS], that[CHOICE_WORDS];
    choice_words(&t->this.choice, this);
    choice_words(&t->that.choice, that);
    LOG(DEBUG, "%s of %zu bytes: %s took %.2f us, %s %.2f us", family_name(t->key.family), t->key.message_bytes, this,
        t->this.ns / 1e3, that, t->that.ns / 1e3);
}
/* Prefers ordinary stores. The incumbent, whose stores change at run time (pace.h), may have used ordinary stores
   during the test, too. */
static bool is_better(const struct trial *t)
{
    const struct candidate *this = &t->this, *that = &t->that;
    bool steadier = that->choice.ordinary && !this->choice.ordinary;
    return steadier ? that->ns < AS_GOOD * this->ns : ab_test_is_won(this->ns, that->ns, that->most_ns);
}
static void ab_test_end(struct trial *t, bool is_complete)
{
    unsigned char rounds = t->skips[t->tried].rounds;
    ab_test_log(t);
    /* A hopeless variant is skipped for longer. A completed test ends that, or halves it for a placement-dependent
       variant, because the test may not have paid off. */
    if (!is_complete) variant_skip(t, t->tried);
    else t->skips[t->tried].rounds = choice_candidates(t, &t->that.choice) ? rounds / 2 : 0;
    t->lost += t->searched_ns / t->this.ns;
    t->searched_ns = 0;
    if (is_complete && is_better(t)) candidate_prefer(t);
    t->next = t->calls;
    ab_test_give_up(t);
}
/* Returns the excess time in calls of the incumbent. The limit keeps an interruption, of a call that may also make a
   plan, from counting in full. */
static double cost_excess(double ns, const struct trial *t)
{
    double calls = ns / t->this.ns - 1;
    return calls < 0 ? 0 : calls < MOST_LOST ? calls : MOST_LOST;
}
static double block_median(struct trial *t) { return sorted_at(t->sample, t->count, t->count / 2); }
static void end_block(struct trial *t)
{
    struct candidate *c = block_candidate(t, t->block);
    double ns = block_median(t);
    uint64_t calls = t->calls - t->begun;
    if (t->block == 0) c->ns = c->most_ns = 0;
    if (c->ns == 0 || ns < c->ns) c->ns = ns;
    if (ns > c->most_ns) c->most_ns = ns;
    t->lost += (double)calls * TIMED_NS / t->this.ns;
    if (c == &t->that) t->lost += cost_excess(t->first_ns, t) + (double)calls * cost_excess(ns, t);
    bool hopeless = t->block == 1 && ab_test_is_hopeless(t->this.ns, t->that.ns, false);
    if (hopeless || t->block == BLOCKS - 1) ab_test_end(t, !hopeless);
    else begin_block(t, t->block + 1, t->change);
}
static bool is_long_enough(struct trial *t)
{
    /* A time was read since the last call. */
    bool is_told = t->silent == 1;
    bool may_be_hopeless = t->block == 1 && t->count >= AB_TEST_FEW_SAMPLES && is_told;
    return t->count >= measure_of(t)->enough
        || (may_be_hopeless && ab_test_is_hopeless(t->this.ns, block_median(t), true));
}
/* A block continues until the next one begins: when it is long enough and the word may be written again. */
static void go_on(struct trial *t, const struct moment *now)
{
    if (t->change && now->operation >= t->change) end_block(t);
    if (t->block < 0) return;
    bool runs_another = now->operation >= t->start && code_now(t, now->operation) != timed_code(t, t->block);
    /* The test ends if times stay unknown, or if the word is so old that its operation number has wrapped. */
    if (++t->silent > MOST_SILENT || runs_another) {
        t->next = t->calls + LONG_PAUSE;
        ab_test_give_up(t);
        return;
    }
    if (!t->change && is_long_enough(t) && may_write(t, now)) t->change = let_run(t, now, timed_code(t, t->block + 1));
}

/* ---- what to try, and when ---- */
static bool may_spend(const struct trial *t)
{
    double calls = (double)t->calls, once = t->this.ns > 0 ? fmax(EARLY_CALLS, EARLY_NS / t->this.ns) : EARLY_CALLS;
    return t->lost <= fmin(EARLY_SHARE * calls, once + LATER_SHARE * calls);
}
/* Makes a variant of the incumbent. */
static tutti_status trial_vary(const struct trial *t, const struct variety *v, int variant, struct choice *out,
    bool *exists)
{
    struct question question = t->question;
    if (choice_candidates(t, &t->this.choice)) question.placement = t->look.seen;
    if (variant != GO_BACK) return choice_vary(v, &question, &t->this.choice, variant, out, exists);
    *out = t->look.before.choice;
    *exists = true;
    return TUTTI_OK;
}
static bool find_other(struct trial *t, const struct variety *v)
{
    int ventured = choice_candidates(t, &t->this.choice);
    if (!ventured) t->look.seen = v->could_be;
    for (int i = 0; i < VARIANTS; i++) {
        bool exists = false;
        int variant = ventured && t->move == ventured ? GO_BACK : t->move;
        t->move = (t->move + 1) % VARIANTS;
        struct choice found;
        if (trial_vary(t, v, variant, &found, &exists) != TUTTI_OK) return false;
        if (!exists || (t->skips[variant].left && t->skips[variant].left--)) continue;
        t->tried = variant;
        t->that = (struct candidate){ .choice = found, .code = choice_code(&found) };
        return true;
    }
    return false;
}
static bool is_due(const struct trial *t, uint64_t call) { return t->block < 0 && call >= t->next; }
bool trial_may_search(const struct trials *trials, const struct trial *t)
{
    return is_due(t, t->calls + 1) && !is_stopped(trials, t->key.family);
}
/* For tests: runs the next variant of the last choice, at any price. */
static void trial_wander(struct trial *t, const struct moment *now, const struct variety *v)
{
    if (!may_write(t, now) || !find_other(t, v)) return;
    candidate_prefer(t);
    let_run(t, now, t->this.code);
}
/* True if all ranks run the incumbent. Otherwise it lets them run the incumbent again as soon as it can. */
static bool is_at_rest(struct trial *t, const struct moment *now)
{
    if (!may_write(t, now)) return false;
    if (code_now(t, now->operation) == t->this.code) return true;
    let_run(t, now, t->this.code);
    return false;
}
static void trial_rest(struct trial *t, const struct moment *now, const struct variety *v)
{
    if (!is_at_rest(t, now) || !is_due(t, t->calls)) return;
    t->next = t->calls + (uint64_t)measure_of(t)->pause;
    if (!may_spend(t)) return;
    int64_t begin = clock_ns();
    bool found = find_other(t, v);
    t->searched_ns += (double)(clock_ns() - begin);
    if (!found) return;
    begin_block(t, 0, let_run(t, now, timed_code(t, 0)));
}
void trial_begin(struct trials *trials, struct trial *t, const struct moment *now, const struct variety *v)
{
    /* Without a priced choice there is no incumbent yet. */
    if (!t->priced.algorithm || trials->trying == TRIES_NOTHING) return;
    t->calls++;
    if (is_stopped(trials, t->key.family)) {
        t->this = (struct candidate){ .choice = t->priced };
        ab_test_give_up(t);
        is_at_rest(t, now);
        return;
    }
    if (trials->trying == TRIES_ANYTHING) { trial_wander(t, now, v); return; }
    if (t->block >= 0) go_on(t, now);
    if (t->block < 0) trial_rest(t, now, v);
}
void trial_took(struct trial *t, uint64_t operation, double ns)
{
    if (t->block < 0 || operation < t->start || (t->change && operation >= t->change)) return;
    t->silent = 0;
    if (t->count == -measure_of(t)->warm) t->first_ns = ns;
    if (t->count < 0) t->count++;
    else if (t->count < TRIAL_SAMPLES) t->sample[t->count++] = ns;
}
