#include "backend/engine/trying.h"
#include "backend/base/clock.h"
#include "backend/base/settings.h"
#include "backend/base/status.h"
#include "backend/engine/comm.h"
#include <math.h>

enum { TRIED_AT_LEAST = 4096 };                         /* bytes; what is shorter travels in lines */
static const double TRIED_AT_MOST = 1.6;                /* times the least price */

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
static bool is_decider(const tutti_comm *comm, const struct trial *t)
{
    return trial_decider(&t->key, comm->launcher.ranks) == comm->group.rank;
}
/* Before an operation in which all await all is over, nobody begins another. */
static struct moment now(const tutti_comm *comm, const struct operation *op)
{
    const struct executor *x = &comm->executor;
    bool apart = family_has_root((enum family)op->family) && !comm->launcher.recent[op->family].deferred;
    if (apart) return (struct moment){ x->operation, TRACKS, TRACKS };
    return (struct moment){ x->operation, x->operation - x->tracks.joined, 0 };
}
uint32_t trying_begin(tutti_comm *comm, const struct operation *op, struct trial *t)
{
    struct executor *x = &comm->executor;
    struct launcher *l = &comm->launcher;
    x->launch.timed = false;
    if (!t || op->sum.rows.function) return 0;
    if (is_decider(comm, t)) {
        bool anything = l->trials.trying == TRIES_ANYTHING;
        struct variety variety = { &l->chooser, x->site.paced && x->site.stream, anything ? HUGE_VAL : TRIED_AT_MOST };
        struct moment moment = now(comm, op);
        x->launch.timed = trial_begin(&l->trials, t, &moment, &variety);
        if (x->launch.timed) l->begun_ns = clock_ns();
    }
    return trial_code_at(atomic_load_explicit(t->word, memory_order_acquire), x->operation);
}
/* The time that went by until all had come is theirs. But what a root waits for, is what they bring: that counts. */
void trying_end(tutti_comm *comm, const struct operation *op, struct trial *t)
{
    const struct executor *x = &comm->executor;
    int64_t ns = clock_ns() - comm->launcher.begun_ns;
    if (!family_has_root((enum family)op->family)) ns -= x->run.awaited_ns;
    trial_end(t, x->operation - 1, (double)(ns > 1 ? ns : 1));
}
bool trying_take(uint32_t code, bool open, struct choice *choice)
{
    struct choice tried;
    if (!code || !choice_decode(code, choice->algorithm->family, &tried)) return false;
    tried.reads &= open;
    *choice = tried;
    return true;
}
