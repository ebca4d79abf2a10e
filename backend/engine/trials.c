#include "backend/engine/trials.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/collectives/collectives.h"
#include <stdlib.h>
#include <string.h>

enum { LEAD = TRACKS + 1, BLOCKS = 4, WARM = 4, LEAST_SAMPLES = 4, FIRST_CALL = 32, LOOK_EVERY = 64 };
/* What is this much better replaces what ran so far; what is so much worse is not looked at twice. */
static const double BETTER = 0.97, AS_GOOD = 1.02, HOPELESS = 1.1;
static const double EARLY_SHARE = 0.1, LATER_SHARE = 0.01, EARLY_CALLS = 64;

/* ---- words ---- */
static const uint64_t CODE_MASK = (1u << CHOICE_BITS) - 1;
uint64_t trial_word(uint64_t from, uint32_t before, uint32_t after)
{
    return from << 2 * CHOICE_BITS | (uint64_t)before << CHOICE_BITS | after;
}
uint32_t trial_code_at(uint64_t word, uint64_t operation)
{
    int64_t ahead = (int64_t)((operation << 2 * CHOICE_BITS) - (word & ~trial_word(0, CODE_MASK, CODE_MASK)));
    return (uint32_t)((ahead >= 0 ? word : word >> CHOICE_BITS) & CODE_MASK);
}
static bool may_write(const struct trial *t, uint64_t operation) { return operation >= t->from + TRACKS; }
static void let_run(struct trial *t, uint64_t operation, uint32_t code)
{
    t->before = t->after;
    t->after = code;
    t->from = operation + LEAD;
    atomic_store_explicit(t->word, trial_word(t->from, t->before, t->after), memory_order_release);
}

/* ---- kinds of calls ---- */
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
    if (!made) return status_fail(TUTTI_NO_MEMORY, "no memory for what is tried");
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
/* Who has the result last: of a collective in which all have it, rank 0. */
int trial_decider(const struct trial_key *key, int ranks)
{
    if (key->family == REDUCE || key->family == GATHER) return key->root;
    return key->family == BROADCAST || key->family == SCATTER ? (key->root + 1) % ranks : 0;
}
void trial_is_of(struct trial *t, const struct question *question, const struct choice *priced)
{
    if (t->this.choice.algorithm && t->question.placement == question->placement) return;
    t->question = *question;
    t->this = (struct contender){ .choice = *priced };
    t->block = -1;
    t->change = 0;
    t->calls = 0;
    t->lost = 0;
    t->next = FIRST_CALL;
    t->move = 0;
}

/* ---- a duel ---- */
static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double *sample, int count)
{
    qsort(sample, (size_t)count, sizeof *sample, by_size);
    return sample[count / 2];
}
static struct contender *runs(struct trial *t, int block) { return block % 2 ? &t->that : &t->this; }
static void begin_block(struct trial *t, int block, uint64_t start)
{
    t->block = block;
    t->start = start;
    t->warm = t->count = 0;
    t->change = 0;
}
static void log_duel(const struct trial *t)
{
    char this[CHOICE_WORDS], that[CHOICE_WORDS];
    choice_words(&t->this.choice, this);
    choice_words(&t->that.choice, that);
    LOG(DEBUG, "%s of %zu bytes: %s took %.2f us, %s %.2f us", family_name(t->key.family), t->key.message_bytes, this,
        t->this.ns / 1e3, that, t->that.ns / 1e3);
}
/* Ordinary stores are preferred: what else they are measured against may be they as well, and not for long. */
static void end_duel(struct trial *t)
{
    bool steadier = t->that.choice.ordinary && !t->this.choice.ordinary;
    log_duel(t);
    if (t->that.ns < (steadier ? AS_GOOD : BETTER) * t->this.ns) t->this = t->that;
    t->block = -1;
    t->next = t->calls;
}
static void end_block(struct trial *t)
{
    struct contender *c = runs(t, t->block);
    double ns = median(t->sample, t->count);
    if (!c->ns || ns < c->ns) c->ns = ns;
    if (c == &t->that && ns > t->this.ns) t->lost += (t->warm + t->count) * (ns / t->this.ns - 1);
    bool hopeless = t->block == 1 && t->that.ns > HOPELESS * t->this.ns;
    if (hopeless || t->block == BLOCKS - 1) end_duel(t);
    else begin_block(t, t->block + 1, t->change);
}
/* A block is long enough when it has been measured and the word may be written again; it goes on until the next one
   begins. */
static void go_on(struct trial *t, uint64_t operation)
{
    if (t->change && operation >= t->change) end_block(t);
    if (t->block < 0 || t->change || t->count < LEAST_SAMPLES || !may_write(t, operation)) return;
    let_run(t, operation, runs(t, t->block + 1)->code);
    t->change = t->from;
}

/* ---- what to try, and when ---- */
static bool may_spend(const struct trial *t)
{
    double calls = (double)t->calls, early = EARLY_SHARE * calls, later = EARLY_CALLS + LATER_SHARE * calls;
    return t->lost <= (early < later ? early : later);
}
static bool find_other(struct trial *t, const struct variety *v)
{
    for (int i = 0; i < VARIANTS; i++) {
        bool exists = false;
        int move = t->move;
        t->move = (t->move + 1) % VARIANTS;
        struct choice found;
        if (choice_vary(v, &t->question, &t->this.choice, move, &found, &exists) != TUTTI_OK) return false;
        if (!exists) continue;
        t->that = (struct contender){ .choice = found, .code = choice_code(&found) };
        return true;
    }
    return false;
}
/* For tests: the next variant of what ran last, whatever it costs. */
static void wander(struct trial *t, uint64_t operation, const struct variety *v)
{
    if (!may_write(t, operation) || !find_other(t, v)) return;
    t->this = t->that;
    let_run(t, operation, t->this.code);
}
static void rest(struct trial *t, uint64_t operation, const struct variety *v)
{
    if (!may_write(t, operation)) return;
    if (t->before != t->this.code || t->after != t->this.code) { let_run(t, operation, t->this.code); return; }
    if (t->calls < t->next) return;
    t->next = t->calls + LOOK_EVERY;
    if (!may_spend(t) || !find_other(t, v)) return;
    t->this.ns = 0;
    begin_block(t, 0, operation);
}
bool trial_begin(struct trials *trials, struct trial *t, uint64_t operation, const struct variety *v)
{
    if (!t->this.choice.algorithm || trials->trying == TRIES_NOTHING) return false;    /* nothing has been priced yet */
    t->calls++;
    if (is_stopped(trials, t->key.family)) return false;
    if (trials->trying == TRIES_ANYTHING) { wander(t, operation, v); return false; }
    if (t->block >= 0) go_on(t, operation);
    if (t->block < 0) rest(t, operation, v);
    return t->block >= 0;
}
void trial_end(struct trial *t, uint64_t operation, double ns)
{
    if (t->block < 0 || operation < t->start || (t->change && operation >= t->change)) return;
    if (t->warm < WARM) t->warm++;
    else if (t->count < TRIAL_SAMPLES) t->sample[t->count++] = ns;
}
