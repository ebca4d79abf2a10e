/* All ranks record when they begin a watched call, and when they begin and end a timed one, next to their declarations.
   At the end of a watched call the decider reads when the others began. It reads the stamps of timed calls some
   operations later, when all ranks have written them. */
#include "backend/engine/tuner_run.h"
#include "backend/base/clock.h"
#include "backend/base/status.h"
#include "backend/engine/comm.h"
#include <math.h>

/* The smallest message that tuners serve, and the highest cost of a candidate relative to the least cost. */
enum { LEAST_TUNED_BYTES = 4096 };                      /* bytes */
static const double MOST_RELATIVE_COST = 1.6;

tutti_status tuners_find_for_call(tutti_comm *comm, const struct operation *op, const struct algorithm *requested,
    bool stage_inputs, size_t bytes, struct tuner **out)
{
    struct launcher *launcher = &comm->launcher;
    struct tuner_key key = { (enum collective)op->collective, op->root, stage_inputs, size_floor_half_octave(bytes) };
    bool one_host = !group_has_several_hosts(&comm->group) && launcher->ranks > 1,
         cut = launcher->tile_setting || launcher->slots_setting;
    bool can = one_host && !cut && !op->uneven && op->collective != BARRIER && bytes >= LEAST_TUNED_BYTES;
    *out = NULL;
    if (can) TRY(tuners_find_or_create(&launcher->tuners, &key, out));
    if (one_host && requested) tuners_stop_collective(&launcher->tuners, key.collective);
    if (requested) *out = NULL;
    return TUTTI_OK;
}
/* Returns the placement that the tensors of all ranks could have, judged by this rank's own, because the others have
   not arrived yet. Private tensors count as open only if this rank can read its peers, and calls of this collective do
   not offer private tensors already: if those calls are not open, some rank could not offer its tensors. */
static enum placement_kind tuner_guess_placement(tutti_comm *comm, const struct operation *op)
{
    enum placement_kind guess = tensors_guess_placement(comm, op);
    bool asks = comm->launcher.single_copy < 0 && !comm->launcher.recent[op->collective].may_read;
    if (placement_is_open(guess) && !(asks && tensors_can_read_peers(comm))) return TENSORS_PRIVATE;
    return guess;
}
/* Returns true if this rank decides for the tuner which candidate all ranks run. */
static bool tuner_is_decider(const tutti_comm *comm, const struct tuner *tuner)
{
    return tuner_get_decider(&tuner->key, comm->launcher.ranks) == comm->group.rank;
}
/* Returns the number of this operation, and how many operations other ranks may be behind and ahead. In a collective
   with a root they may be TRACKS operations apart, unless its late selection awaits all. In any other no rank gets
   ahead of this one, and every rank has come to the last operation in which all met (tracks.joined). */
static struct moment tuner_get_moment(const tutti_comm *comm, const struct operation *op)
{
    const struct executor *executor = &comm->executor;
    bool apart =
        collective_has_root((enum collective)op->collective) && !comm->launcher.recent[op->collective].selects_late;
    if (apart) return (struct moment){ executor->operation, TRACKS, TRACKS };
    return (struct moment){ executor->operation, executor->operation - executor->tracks.joined, 0 };
}
uint32_t tuner_run_begin(tutti_comm *comm, const struct operation *op, struct tuner *tuner)
{
    struct executor *executor = &comm->executor;
    struct launcher *launcher = &comm->launcher;
    launcher->timed = launcher->watched = false;
    if (!tuner || op->sum.rows.function) return 0;
    if (tuner_is_decider(comm, tuner)) {
        bool any_variant = launcher->tuners.mode == TUNER_TAKES_ANY_VARIANT;
        struct variant_limits limits = { &launcher->chooser, executor->site.is_paced,
            any_variant ? HUGE_VAL : MOST_RELATIVE_COST,
            tuner_may_search(&launcher->tuners, tuner) ? tuner_guess_placement(comm, op) : TENSORS_PRIVATE };
        struct moment moment = tuner_get_moment(comm, op);
        tuner_begin_call(&launcher->tuners, tuner, &moment, &limits);
    }
    uint32_t code = tuner_count_call(tuner, executor->operation, &launcher->watched);
    launcher->timed = code & TUNER_TIMED;
    launcher->watched &= launcher->tuners.mode == TUNER_ON;
    if (launcher->timed) launcher->begun_ns = clock_ns();
    return code & ~(uint32_t)TUNER_TIMED;
}
/* Returns the stamp of operation `number` (from 1) of the rank with this index. */
static struct stamp *call_get_stamp(const tutti_comm *comm, int index, uint64_t number)
{
    return &executor_declaration(&comm->executor, index, number - 1)->stamp;
}
/* A reader that finds the same number before and after has read a consistent stamp. The end follows later. The time of
   a timed call includes the making of its plan, which is a part of the cost of a test; that of a watched call does
   not. */
void tuner_run_stamp(tutti_comm *comm)
{
    const struct launcher *launcher = &comm->launcher;
    if (!launcher->watched && !launcher->timed) return;
    uint64_t number = comm->executor.operation + 1;
    struct stamp *mine = call_get_stamp(comm, comm->executor.site.index, number);
    atomic_store_explicit(&mine->number, 0, memory_order_relaxed);
    atomic_store_explicit(&mine->ended_ns, 0, memory_order_release);
    atomic_store_explicit(&mine->begun_ns, launcher->timed ? launcher->begun_ns : clock_ns(), memory_order_release);
    atomic_store_explicit(&mine->number, number, memory_order_release);
}
/* Returns the nanoseconds from when the last rank has begun operation `number` until now. Ignores ranks that have not
   begun: this rank did not wait for them. */
static double call_watch_duration(const tutti_comm *comm, uint64_t number)
{
    int64_t begun = 0;
    for (int index = 0; index < comm->executor.site.ranks; index++) {
        struct stamp *s = call_get_stamp(comm, index, number);
        if (atomic_load_explicit(&s->number, memory_order_acquire) != number) continue;
        int64_t begins = atomic_load_explicit(&s->begun_ns, memory_order_acquire);
        if (begins > begun) begun = begins;
    }
    return (double)(clock_ns() - begun);
}
/* Returns the nanoseconds from when the last rank has begun operation `number` until the last has ended, so lateness
   does not count. All ranks have one clock. Returns 0 if some rank has not recorded its times. */
static int64_t call_read_duration(const tutti_comm *comm, uint64_t number)
{
    int64_t begun = 0, ended = 0;
    for (int index = 0; index < comm->executor.site.ranks; index++) {
        struct stamp *s = call_get_stamp(comm, index, number);
        if (atomic_load_explicit(&s->number, memory_order_acquire) != number) return 0;
        int64_t begins = atomic_load_explicit(&s->begun_ns, memory_order_acquire);
        int64_t ends = atomic_load_explicit(&s->ended_ns, memory_order_acquire);
        if (atomic_load_explicit(&s->number, memory_order_relaxed) != number) return 0;
        if (!ends) return 0;
        if (begins > begun) begun = begins;
        if (ends > ended) ended = ends;
    }
    return ended > begun ? ended - begun : 0;
}
/* Passes the times of timed calls to their tuners. A call whose times are incomplete stays pending, as long as stamps
   are kept (TRACKS operations): other ranks may end it later than this one. */
static void tuner_read_pending_times(tutti_comm *comm)
{
    struct pending_launch *p = &comm->launcher.pending;
    int kept = 0;
    for (int i = 0; i < p->count; i++) {
        uint64_t number = p->of[i].number;
        int64_t ns = call_read_duration(comm, number);
        if (ns) tuner_add_time(p->of[i].tuner, number - 1, (double)ns);
        else if (comm->executor.operation - number < TRACKS) p->of[kept++] = p->of[i];
    }
    p->count = kept;
}
/* Passes the time of a watched call that has ended to its tuner. */
static void tuner_watch_call(tutti_comm *comm, struct tuner *tuner)
{
    struct launcher *launcher = &comm->launcher;
    if (!launcher->watched || !tuner_is_decider(comm, tuner)) return;
    tuner_add_watched_time(tuner, launcher->code, call_watch_duration(comm, comm->executor.operation));
}
/* The stamps of several short calls are read together, because each stamp of a peer moves a cache line from its
   core. */
void tuner_run_end(tutti_comm *comm, struct tuner *tuner)
{
    struct launcher *launcher = &comm->launcher;
    struct pending_launch *p = &launcher->pending;
    /* executor.operation counts from 0 and is already that of the next operation, so it is this operation's number from
       1. */
    uint64_t number = comm->executor.operation;
    if (launcher->timed)
        atomic_store_explicit(&call_get_stamp(comm, comm->executor.site.index, number)->ended_ns, clock_ns(),
            memory_order_release);
    tuner_watch_call(comm, tuner);
    bool is_due = p->count == PENDING || (p->count && number - p->of[0].number >= tuner_get_batch(p->of[0].tuner));
    if (is_due) tuner_read_pending_times(comm);
    if (!launcher->timed || !tuner_is_decider(comm, tuner) || p->count == PENDING) return;
    p->of[p->count].tuner = tuner;
    p->of[p->count++].number = number;
}
