#include "backend/engine/trying.h"
#include "backend/base/clock.h"
#include "backend/base/settings.h"
#include "backend/base/status.h"
#include "backend/engine/comm.h"
#include <math.h>

/* The smallest message that is tried, and the highest price of a candidate relative to the least price. */
enum { TRIED_AT_LEAST = 4096 };                         /* bytes */
static const double TRIED_AT_MOST = 1.6;

void trying_init(struct trials *trials, struct tuning *tuning, bool crowded)
{
    int64_t setting = settings_get()->trials;
    trials->tuning = tuning;
    trials->trying = crowded && setting == TRIES ? TRIES_NOTHING : (enum trying)setting;
}
tutti_status trying_find(tutti_comm *comm, const struct operation *op, const struct algorithm *asked, bool stage_inputs,
    size_t bytes, struct trial **out)
{
    struct launcher *l = &comm->launcher;
    struct trial_key key = { (enum family)op->family, op->root, stage_inputs, half_octave(bytes) };
    bool alone = !group_is_spread(&comm->group) && l->ranks > 1, cut = l->tile_setting || l->slots_setting;
    bool can = alone && !cut && !op->uneven && op->family != BARRIER && bytes >= TRIED_AT_LEAST;
    *out = NULL;
    if (can) TRY(trials_find(&l->trials, &key, out));
    if (alone && asked) trials_stop(&l->trials, key.family);
    if (asked) *out = NULL;
    return TUTTI_OK;
}
/* Returns the placement that private tensors could have, judged by this rank's own; those of others are seen when they
   arrive. If ranks already offer their tensors for reading and the placement is still private, some rank could not
   offer them. */
static enum placement_kind could_be(tutti_comm *comm, const struct operation *op)
{
    enum placement_kind guess = tensors_guess(comm, op);
    bool asks = comm->launcher.single_copy < 0 && !comm->launcher.recent[op->family].may_read;
    if (choice_is_open(guess) && !(asks && tensors_can_read(comm))) return TENSORS_PRIVATE;
    return guess;
}
static bool is_decider(const tutti_comm *comm, const struct trial *t)
{
    return trial_decider(&t->key, comm->launcher.ranks) == comm->group.rank;
}
/* If all ranks wait for all in an operation, each begins the next one only after it is over. */
static struct moment moment_now(const tutti_comm *comm, const struct operation *op)
{
    const struct executor *x = &comm->executor;
    bool apart = family_has_root((enum family)op->family) && !comm->launcher.recent[op->family].looks;
    if (apart) return (struct moment){ x->operation, TRACKS, TRACKS };
    return (struct moment){ x->operation, x->operation - x->tracks.joined, 0 };
}
uint32_t trying_begin(tutti_comm *comm, const struct operation *op, struct trial *t)
{
    struct executor *x = &comm->executor;
    struct launcher *l = &comm->launcher;
    l->timed = false;
    if (!t || op->sum.rows.function) return 0;
    if (is_decider(comm, t)) {
        bool anything = l->trials.trying == TRIES_ANYTHING;
        struct variety variety = { &l->chooser, x->site.paced, anything ? HUGE_VAL : TRIED_AT_MOST,
            trial_may_search(&l->trials, t) ? could_be(comm, op) : TENSORS_PRIVATE };
        struct moment moment = moment_now(comm, op);
        trial_begin(&l->trials, t, &moment, &variety);
    }
    uint32_t code = trial_code_at(atomic_load_explicit(t->word, memory_order_acquire), x->operation);
    l->timed = code & TRIAL_TIMED;
    if (l->timed) l->begun_ns = clock_ns();
    return code & ~(uint32_t)TRIAL_TIMED;
}
static struct stamp *stamp_of(const tutti_comm *comm, int index, uint64_t number)
{
    return &executor_declaration(&comm->executor, index, number - 1)->stamp;
}
/* A reader that finds the same number before and after has read a consistent stamp. */
static void time_stamp(const tutti_comm *comm, uint64_t number)
{
    struct stamp *mine = stamp_of(comm, comm->executor.site.index, number);
    atomic_store_explicit(&mine->number, 0, memory_order_relaxed);
    atomic_store_explicit(&mine->begun_ns, comm->launcher.begun_ns, memory_order_release);
    atomic_store_explicit(&mine->ended_ns, clock_ns(), memory_order_release);
    atomic_store_explicit(&mine->number, number, memory_order_release);
}
/* Returns the time from when the last rank has begun until the last has ended, so lateness does not count. All ranks
   have one clock. 0: some rank has not recorded its times yet. */
static int64_t call_took(const tutti_comm *comm, uint64_t number)
{
    int64_t begun = 0, ended = 0;
    for (int index = 0; index < comm->executor.site.ranks; index++) {
        struct stamp *s = stamp_of(comm, index, number);
        if (atomic_load_explicit(&s->number, memory_order_acquire) != number) return 0;
        int64_t begins = atomic_load_explicit(&s->begun_ns, memory_order_acquire);
        int64_t ends = atomic_load_explicit(&s->ended_ns, memory_order_acquire);
        if (atomic_load_explicit(&s->number, memory_order_relaxed) != number) return 0;
        if (begins > begun) begun = begins;
        if (ends > ended) ended = ends;
    }
    return ended > begun ? ended - begun : 0;
}
/* Other ranks may end the operation later than this one. They have ended it when they come to the next one, or some
   operations later if it may run without them. Stamps are kept for TRACKS operations. */
static void trial_evaluate(tutti_comm *comm)
{
    struct pending_launch *p = &comm->launcher.pending;
    int kept = 0;
    for (int i = 0; i < p->count; i++) {
        uint64_t number = p->of[i].number;
        int64_t ns = call_took(comm, number);
        if (ns) trial_took(p->of[i].trial, number - 1, (double)ns);
        else if (comm->executor.operation - number < TRACKS) p->of[kept++] = p->of[i];
    }
    p->count = kept;
}
/* Each stamp of a peer moves a cache line from its core, so the stamps of several short calls are read together. */
void trying_end(tutti_comm *comm, struct trial *t)
{
    struct launcher *l = &comm->launcher;
    struct pending_launch *p = &l->pending;
    /* The number of this operation from 1 is that of the next one from 0. */
    uint64_t number = comm->executor.operation;
    if (l->timed) time_stamp(comm, number);
    bool is_due = p->count == PENDING || (p->count && number - p->of[0].number >= trial_batch(p->of[0].trial));
    if (is_due) trial_evaluate(comm);
    if (!l->timed || !is_decider(comm, t) || p->count == PENDING) return;
    p->of[p->count].trial = t;
    p->of[p->count++].number = number;
}
bool trying_take(uint32_t code, bool open, struct choice *choice)
{
    struct choice tried;
    if (!code || !choice_decode(code, choice->algorithm->family, &tried)) return false;
    tried.reads &= open;
    *choice = tried;
    return true;
}
