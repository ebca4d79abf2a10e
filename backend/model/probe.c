/* Measures the machine. Two threads of this process, each on a core of its own, exchange data as ranks do. The caller's
   thread only waits for them, so its affinity does not change. Every wait has a limit, after which the remaining
   parameters stay typical, so a busy machine costs no more time than a quiet one. A hypervisor or another program may
   take a core away at any moment, so everything is repeated, and the slower repetitions do not count. The probe does
   not decide how slots are written: execute/pace.c keeps measuring that, because cores are moved without notice.
   Parameters need to be right only within a factor of two. */
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/pause.h"
#include "backend/base/sorted.h"
#include "backend/base/thread.h"
#include "backend/model/machine.h"
#include <linux/futex.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { SLOT = 64 << 10, REPEATS = 9, BATCH = 100, POLLS = 64, MOST_CPUS = 1024 };
/* A thread is asleep after FALL_ASLEEP_NS, and sleeps at most SLEEP_NS. */
enum { FALL_ASLEEP_NS = 50000, SLEEP_NS = 5000000 };
/* A message beyond the cache is MESSAGE_CACHES times as large as the cache, but at most MOST_MESSAGE bytes. */
enum { MESSAGE_CACHES = 4, MOST_MESSAGE = 6 << 20 };
enum { SMALL_TILE = 16 << 10, LARGE_TILE = 128 << 10, IN_FLIGHT = 3, PASSES = 7 };

/* Streaming counts as faster only below this fraction of the time of ordinary stores. With a shared cache both take
   about the same time, and execute/pace.c uses ordinary stores. */
static const double CLEARLY = 0.8;

/* A word is two lines long, so that values are in different lines at any alignment. */
struct word { _Atomic uint32_t value; char padding[124]; };
/* The state that both threads, the sides, share; arrays have an entry per side. stream may be NULL; barriers: how often
   a side has come to side_await_other; copied, taken: its tiles put into slots, and tiles taken from the other's. */
struct probe {
    struct machine *found;
    machine_copy *stream;
    int64_t deadline_ns;
    int core[2];
    int64_t woken_ns;
    bool complete;
    _Atomic bool is_late;
    struct word barriers[2], ping, copied[2], taken[2];
    /* The faster way to write a slot. */
    machine_copy *write;
    unsigned char *slot[2], *message[2];
    size_t message_bytes;
};
/* A thread. index: 0 or 1; side 0 records results. on_same_core: both share a core. barrier_count: barriers so far. */
struct side { struct probe *probe; int index; uint32_t barrier_count; bool on_same_core; };

/* ---- time ---- */
static bool probe_is_late(struct probe *probe)
{
    if (clock_ns() > probe->deadline_ns) atomic_store_explicit(&probe->is_late, true, memory_order_relaxed);
    return atomic_load_explicit(&probe->is_late, memory_order_relaxed);
}
/* Disturbances only make a time longer, so times_lower_quartile takes the lower quartile. Differences may err both
   ways, and the time of a sleep varies, so times_median serves for these. */
static double times_lower_quartile(double *times, int count) { return doubles_sort_and_get(times, count, count / 4); }
static double times_median(double *times, int count) { return doubles_sort_and_get(times, count, count / 2); }
static double time_since(int64_t begin_ns) { return (double)(clock_ns() - begin_ns); }

/* ---- two threads ---- */
/* Polls until the word has at least the value. False, here and below: the deadline has passed, and all ends. */
static bool word_wait_for_value(const struct side *me, struct word *word, uint32_t value)
{
    for (unsigned n = 1; atomic_load_explicit(&word->value, memory_order_acquire) < value; n++) {
        if (me->on_same_core) sched_yield();
        else cpu_pause_briefly();
        if (n % POLLS == 0 && probe_is_late(me->probe)) return false;
    }
    return true;
}
static bool side_await_other(struct side *me)
{
    uint32_t count = ++me->barrier_count;
    atomic_store_explicit(&me->probe->barriers[me->index].value, count, memory_order_release);
    return word_wait_for_value(me, &me->probe->barriers[!me->index], count);
}
/* Exchanges pings between the sides, `rounds` in a repetition. Side 0 sets *out to the ns of one way. */
static bool side_measure_pings(struct side *me, uint32_t rounds, double *out)
{
    struct probe *probe = me->probe;
    double times[REPEATS];
    for (int k = 0; k < REPEATS; k++) {
        atomic_store(&probe->ping.value, 0);
        if (!side_await_other(me)) return false;
        int64_t begin = clock_ns();
        for (uint32_t i = 0; i < rounds; i++) {
            if (me->index && !word_wait_for_value(me, &probe->ping, 2 * i + 1)) return false;
            atomic_store_explicit(&probe->ping.value, 2 * i + 1 + (uint32_t)me->index, memory_order_release);
            if (!me->index && !word_wait_for_value(me, &probe->ping, 2 * i + 2)) return false;
        }
        times[k] = time_since(begin) / rounds / 2;
        if (!side_await_other(me)) return false;
    }
    if (!me->index) *out = times_lower_quartile(times, REPEATS);
    return true;
}
/* Wakes the other side, after waiting until that has fallen asleep. */
static void probe_wake_sleeper(struct probe *probe)
{
    for (int64_t until = clock_ns() + FALL_ASLEEP_NS; clock_ns() < until;) sched_yield();
    probe->woken_ns = clock_ns();
    atomic_store(&probe->ping.value, 1);
    syscall(SYS_futex, &probe->ping.value, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
/* Sleeps on a futex until woken. *out gets the ns from the wake-up call until this thread runs. */
static bool probe_sleep_until_woken(struct probe *probe, double *out)
{
    struct timespec limit = { 0, SLEEP_NS };
    while (!atomic_load(&probe->ping.value)) {
        syscall(SYS_futex, &probe->ping.value, FUTEX_WAIT_PRIVATE, 0, &limit, NULL, 0);
        if (probe_is_late(probe)) return false;
    }
    *out = time_since(probe->woken_ns);
    return true;
}
/* Measures the time in ns to wake a sleeping thread (machine.sleep). */
static bool side_measure_sleep(struct side *me)
{
    struct probe *probe = me->probe;
    double times[REPEATS];
    for (int k = 0; k < REPEATS; k++) {
        atomic_store(&probe->ping.value, 0);
        if (!side_await_other(me)) return false;
        if (me->index) probe_wake_sleeper(probe);
        else if (!probe_sleep_until_woken(probe, &times[k])) return false;
        if (!side_await_other(me)) return false;
    }
    if (!me->index) probe->found->sleep = times_median(times, REPEATS);
    return true;
}

/* ---- bytes ---- */
static void bytes_copy_ordinary(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
/* Copies by the kernel's read of another process, here of this process's own memory, which takes the same work. */
static void bytes_read_by_kernel(void *to, const void *from, size_t bytes)
{
    struct iovec local = { to, bytes }, remote = { (void *)(uintptr_t)from, bytes };
    process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
}
static bool kernel_can_read_memory(void)
{
    unsigned char from = 1, to = 0;
    bytes_read_by_kernel(&to, &from, 1);
    return to == from;
}
static void floats_add_to_sum(void *to, const void *from, size_t bytes)
{
    float *sum = to;
    const float *term = from;
    for (size_t i = 0; i < bytes / sizeof *sum; i++) sum[i] += term[i];
}
/* Returns the ns per byte that a function takes: the lower quartile of several runs. */
static double work_time_per_byte(machine_copy *work, void *to, const void *from, size_t bytes)
{
    double times[REPEATS];
    for (int k = 0; k < REPEATS; k++) {
        int64_t begin = clock_ns();
        work(to, from, bytes);
        __asm__ volatile("" ::"r"(to) : "memory");
        times[k] = time_since(begin) / (double)bytes;
    }
    return times_lower_quartile(times, REPEATS);
}
static double copy_time_per_byte(void *to, const void *from, size_t bytes)
{
    bytes_copy_ordinary(to, from, bytes);
    return work_time_per_byte(bytes_copy_ordinary, to, from, bytes);
}
/* Sets near and far, the ns per byte of copies within the second-level cache and beyond it, and add. */
static void probe_measure_copies(struct probe *probe)
{
    unsigned char *a = probe->message[0], *b = probe->message[1];
    probe->found->near = copy_time_per_byte(a, b, SLOT);
    /* An addition moves three numbers where a copy moves two. It may hide behind the loads, so the cost has a least. */
    double addition = work_time_per_byte(floats_add_to_sum, a, b, SLOT) - 1.5 * probe->found->near;
    double least_addition = probe->found->near / 8;
    probe->found->add = addition > least_addition ? addition : least_addition;
    probe->found->far = copy_time_per_byte(a, b, probe->message_bytes / 2);
    if (probe->found->far < probe->found->near) probe->found->far = probe->found->near;
}
/* Writes one of `count` slots from a tensor, then reads the other side's, repeatedly. Sets the ns per byte of both. */
static bool side_exchange_slots(struct side *me, machine_copy *write, machine_copy *fetch,
    unsigned char *const slots[2], size_t count, unsigned char *const tensors[2], double *written, double *read)
{
    /* The first repetition that counts. Before it, slots lie in memory that no core has read yet. */
    size_t first = count + 1;
    double writes[REPEATS], reads[REPEATS];
    for (size_t k = 0; k < first + REPEATS; k++) {
        size_t at = k % count * SLOT;
        if (!side_await_other(me)) return false;
        int64_t begin = clock_ns();
        write(slots[me->index] + at, tensors[me->index], SLOT);
        if (k >= first) writes[k - first] = time_since(begin) / SLOT;
        if (!side_await_other(me)) return false;
        begin = clock_ns();
        fetch(tensors[me->index], slots[!me->index] + at, SLOT);
        if (k >= first) reads[k - first] = time_since(begin) / SLOT;
    }
    *written = times_lower_quartile(writes, REPEATS);
    *read = times_lower_quartile(reads, REPEATS);
    return true;
}
/* Sets slot_write, slot_read and probe->write: by ordinary stores, or around the cache if that is faster. */
static bool side_measure_slots(struct side *me)
{
    struct probe *probe = me->probe;
    double written, read, streamed = 0, streamed_read = 0;
    if (!side_exchange_slots(me, bytes_copy_ordinary, bytes_copy_ordinary, probe->slot, 1, probe->message, &written,
            &read))
        return false;
    if (probe->stream
        && !side_exchange_slots(me, probe->stream, bytes_copy_ordinary, probe->slot, 1, probe->message, &streamed,
            &streamed_read))
        return false;
    bool stream_is_faster = probe->stream && streamed + streamed_read < CLEARLY * (written + read);
    if (me->index) return true;
    probe->write = stream_is_faster ? probe->stream : bytes_copy_ordinary;
    probe->found->slot_write = stream_is_faster ? streamed : written;
    probe->found->slot_read = stream_is_faster ? streamed_read : read;
    return true;
}
/* Sets lost_write and lost_read: slots that are reused so late that no second-level cache holds them any more. */
static bool side_measure_lost_lines(struct side *me)
{
    struct probe *probe = me->probe;
    double written, read;
    if (!side_exchange_slots(me, probe->write, bytes_copy_ordinary, probe->message, probe->message_bytes / SLOT,
            probe->slot, &written, &read))
        return false;
    if (me->index) return true;
    probe->found->lost_write = fmin(written, probe->found->slot_write);
    probe->found->lost_read = fmin(read, probe->found->slot_read);
    return true;
}
/* Sets reading, fetch and lost_fetch: reads by the kernel of bytes in the other side's cache and beyond it. */
static bool side_measure_kernel_reads(struct side *me)
{
    struct probe *probe = me->probe;
    struct machine *machine = probe->found;
    double written, fetched, lost, calls[REPEATS];
    /* If the kernel cannot read, single copy is never chosen, and its cost does not matter. */
    if (!kernel_can_read_memory()) return true;
    if (!side_exchange_slots(me, bytes_copy_ordinary, bytes_read_by_kernel, probe->slot, 1, probe->message, &written,
            &fetched))
        return false;
    if (!side_exchange_slots(me, bytes_copy_ordinary, bytes_read_by_kernel, probe->message, probe->message_bytes / SLOT,
            probe->slot, &written, &lost))
        return false;
    if (me->index) return true;
    for (int k = 0; k < REPEATS; k++) {
        int64_t begin = clock_ns();
        for (int i = 0; i < BATCH / 10; i++) bytes_read_by_kernel(probe->slot[0], probe->slot[1], 1);
        calls[k] = time_since(begin) / (BATCH / 10);
    }
    machine->reading = times_lower_quartile(calls, REPEATS);
    machine->fetch = fmax(fetched - machine->reading / SLOT, machine->near);
    machine->lost_fetch = fmax(lost - machine->reading / SLOT, machine->near);
    return true;
}
/* A passage moves a message of `bytes` bytes both ways through slots in tiles of `tile` bytes. A side copies each tile
   into its slot. One tile later it adds the other's tile, as an allreduce, or copies it, as an allgather, to offset
   `to`. Slots are reused after the same number of bytes for every tile size. */
struct passage { size_t tile, bytes, to; machine_copy *take; };
/* Copies this side's tile `k` of `tiles` into a slot, and takes the other side's tile k - 1. */
static bool side_pass_tile(struct side *me, uint32_t k, uint32_t tiles, const struct passage *passage)
{
    struct probe *probe = me->probe;
    int other = !me->index;
    size_t tile = passage->tile;
    uint32_t slots = (uint32_t)(IN_FLIGHT * LARGE_TILE / tile);
    unsigned char *mine = probe->message[me->index];
    if (k < tiles) {
        if (k >= IN_FLIGHT && !word_wait_for_value(me, &probe->taken[other], k - IN_FLIGHT + 1)) return false;
        probe->write(probe->slot[me->index] + k % slots * tile, mine + k * tile, tile);
        atomic_store(&probe->copied[me->index].value, k + 1);
    }
    if (k == 0) return true;
    if (!word_wait_for_value(me, &probe->copied[other], k)) return false;
    passage->take(mine + passage->to + (k - 1) * tile, probe->slot[other] + (k - 1) % slots * tile, tile);
    atomic_store(&probe->taken[me->index].value, k);
    return true;
}
/* *out gets the ns of a whole passage. */
static bool side_time_passage(struct side *me, const struct passage *passage, double *out)
{
    struct probe *probe = me->probe;
    atomic_store(&probe->copied[me->index].value, 0);
    atomic_store(&probe->taken[me->index].value, 0);
    if (!side_await_other(me)) return false;
    uint32_t tiles = (uint32_t)(passage->bytes / passage->tile);
    int64_t begin = clock_ns();
    for (uint32_t k = 0; k <= tiles; k++)
        if (!side_pass_tile(me, k, tiles, passage)) return false;
    *out = time_since(begin);
    return side_await_other(me);
}
/* Sets tile, the fixed cost in ns of a tile, from the difference of a passage in small tiles and one in large tiles. */
static bool side_measure_tiles(struct side *me)
{
    struct machine *machine = me->probe->found;
    size_t bytes = me->probe->message_bytes;
    const struct passage small = { .tile = SMALL_TILE, .bytes = bytes, .take = floats_add_to_sum },
                         large = { .tile = LARGE_TILE, .bytes = bytes, .take = floats_add_to_sum };
    double longer[PASSES], shorter;
    /* Small and large tiles alternate, because the machine drifts. */
    for (int k = 0; k < PASSES; k++) {
        if (!side_time_passage(me, &small, &longer[k]) || !side_time_passage(me, &large, &shorter)) return false;
        longer[k] -= shorter;
    }
    double extra_tiles = (double)bytes / SMALL_TILE - (double)bytes / LARGE_TILE;
    double each = times_median(longer, PASSES) / extra_tiles;
    if (!me->index) machine->tile = each > 1 ? each : 1;
    return true;
}
/* Reads `bytes` of the other side's message by the kernel into the second half of this side's. *out gets the ns. */
static bool side_read_message(struct side *me, size_t bytes, double *out)
{
    struct probe *probe = me->probe;
    unsigned char *to = probe->message[me->index] + probe->message_bytes / 2, *from = probe->message[!me->index];
    if (!side_await_other(me)) return false;
    int64_t begin = clock_ns();
    for (size_t at = 0; at < bytes; at += LARGE_TILE) bytes_read_by_kernel(to + at, from + at, LARGE_TILE);
    *out = time_since(begin);
    return side_await_other(me);
}
/* *out gets the time of kernel reads divided by that of slots. A side writes its message before each, as callers do. */
static bool side_measure_one_copy(struct side *me, size_t bytes, double *out)
{
    struct probe *probe = me->probe;
    const struct passage staged = {
        .tile = LARGE_TILE, .bytes = bytes, .to = probe->message_bytes / 2, .take = bytes_copy_ordinary
    };
    double ratio[PASSES], by_slots;
    for (int k = 0; k < PASSES; k++) {
        memset(probe->message[me->index], k, bytes);
        if (!side_time_passage(me, &staged, &by_slots)) return false;
        memset(probe->message[me->index], k, bytes);
        if (!side_read_message(me, bytes, &ratio[k])) return false;
        ratio[k] /= by_slots;
    }
    if (!me->index) *out = times_median(ratio, PASSES);
    return true;
}
/* Sets one_copy and lost_one_copy, for messages within the cache and beyond it. */
static bool side_measure_single_copy(struct side *me)
{
    struct machine *machine = me->probe->found;
    size_t bytes = me->probe->message_bytes / 2 / LARGE_TILE * LARGE_TILE;
    if (!kernel_can_read_memory()) return true;
    return side_measure_one_copy(me, LARGE_TILE, &machine->one_copy)
        && side_measure_one_copy(me, bytes, &machine->lost_one_copy);
}

/* ---- waiting ---- */
/* Sets pause and yield, the ns of a pause instruction and of a yield. */
static void machine_measure_backoff(struct machine *machine)
{
    double pauses[REPEATS], yields[REPEATS];
    for (int k = 0; k < REPEATS; k++) {
        int64_t begin = clock_ns();
        for (int i = 0; i < BATCH; i++) cpu_pause_briefly();
        pauses[k] = time_since(begin) / BATCH;
        begin = clock_ns();
        for (int i = 0; i < BATCH / 10; i++) sched_yield();
        yields[k] = time_since(begin) / (BATCH / 10);
    }
    machine->pause = times_lower_quartile(pauses, REPEATS);
    machine->yield = times_lower_quartile(yields, REPEATS);
}

/* ---- cores ---- */
/* Binds this thread to the core, if the system allows it. */
static void thread_bind_to_core(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)core, &set);
    sched_setaffinity(0, sizeof set, &set);
}
/* Returns another core of the set, not a hardware thread of `first` if possible; `first` if there are no others. */
static int cores_find_second(const cpu_set_t *set, int first)
{
    int sibling = first;
    for (int hop = 1; hop < MOST_CPUS; hop++) {
        int core = (first + hop) % MOST_CPUS;
        if (!CPU_ISSET((size_t)core, set)) continue;
        if (!cores_are_siblings(first, core)) return core;
        if (sibling == first) sibling = core;
    }
    return sibling;
}
/* Chooses the second core if the caller gave none: a core that the process may use. If the process is bound to one
   core, as ranks often are, it is a core that the system would allow. */
static void probe_choose_cores(struct probe *probe)
{
    cpu_set_t set;
    int first = probe->core[0];
    if (probe->core[1] >= 0) return;
    probe->core[1] = first;
    if (sched_getaffinity(0, sizeof set, &set) == 0) probe->core[1] = cores_find_second(&set, first);
    if (probe->core[1] != first) return;
    for (size_t i = 0; i < MOST_CPUS; i++) CPU_SET(i, &set);
    /* The system ignores cores that the process may not use. */
    sched_setaffinity(0, sizeof set, &set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) probe->core[1] = cores_find_second(&set, first);
}
/* Runs all measurements on one of the two threads. False: they are incomplete, also because there is one core only. */
static bool side_run_measurements(struct side *me)
{
    struct probe *probe = me->probe;
    struct machine *machine = probe->found;
    /* The threads may share a core until both are bound. */
    me->on_same_core = true;
    if (!me->index) probe_choose_cores(probe);
    if (!side_await_other(me)) return false;
    thread_bind_to_core(probe->core[me->index]);
    bool apart = probe->core[0] != probe->core[1];
    if (!me->index && apart) machine_measure_backoff(machine);
    if (!me->index) probe_measure_copies(probe);
    if (!side_await_other(me)) return false;
    me->on_same_core = !apart;
    if (apart && (!side_measure_pings(me, BATCH, &machine->line) || !side_measure_slots(me))) return false;
    if (apart
        && (!side_await_other(me) || !side_measure_lost_lines(me) || !side_await_other(me)
            || !side_measure_kernel_reads(me)))
        return false;
    if (apart && (!side_await_other(me) || !side_measure_tiles(me) || !side_measure_single_copy(me))) return false;
    if (!side_measure_sleep(me)) return false;
    thread_bind_to_core(probe->core[0]);
    me->on_same_core = true;
    return side_measure_pings(me, BATCH / 4, &machine->hand_over) && apart;
}
static void *side_main(void *argument)
{
    struct side *me = argument;
    bool complete = side_run_measurements(me);
    if (!me->index) me->probe->complete = complete;
    return NULL;
}

/* ---- all of it ---- */
static bool probe_run_threads(struct probe *probe)
{
    struct side sides[2] = { { probe, 0, 0, false }, { probe, 1, 0, false } };
    pthread_t threads[2];
    int started = 0;
    while (started < 2 && thread_start_blocking_signals(&threads[started], side_main, &sides[started]) == 0) started++;
    if (started < 2) atomic_store(&probe->is_late, true);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    return started == 2 && probe->complete;
}
/* Allocates the memory of both sides and runs them. `l2`: bytes of the second-level cache. True: complete. */
static bool probe_measure_all(struct probe *probe, double l2)
{
    double wanted_bytes = MESSAGE_CACHES * l2;
    probe->message_bytes = wanted_bytes < MOST_MESSAGE ? (size_t)wanted_bytes / LARGE_TILE * LARGE_TILE : MOST_MESSAGE;
    if (probe->message_bytes < 2 * LARGE_TILE) probe->message_bytes = 2 * LARGE_TILE;
    size_t side_bytes = probe->message_bytes + IN_FLIGHT * LARGE_TILE;
    unsigned char *memory = memory_alloc_aligned(2 * side_bytes);
    for (int i = 0; memory && i < 2; i++) {
        /* memset makes the memory real and gives it valid numbers. */
        probe->message[i] = memset(memory + (size_t)i * side_bytes, 1, side_bytes);
        probe->slot[i] = probe->message[i] + probe->message_bytes;
    }
    probe->deadline_ns = clock_ns() + PROBE_MS * 1000000LL;
    bool complete = memory && probe_run_threads(probe);
    free(memory);
    return complete;
}
bool machine_probe(machine_copy *stream, const int cores[2], struct machine *out)
{
    /* Typical values and facts hold even if the measurement fails. */
    struct machine facts = machine_typical();
    double l2 = cache_level_bytes(2), l3 = cache_level_bytes(3);
    if (l2 > 0) facts.l2 = l2;
    if (l3 > 0) facts.last = l3;
    if (!machine_is_within_bounds(&facts)) facts = machine_typical();
    struct machine found = facts;
    int first = cores ? cores[0] : sched_getcpu(), second = cores ? cores[1] : -1;
    struct probe probe = {
        .found = &found, .stream = stream, .write = bytes_copy_ordinary, .core = { first >= 0 ? first : 0, second }
    };
    bool complete = probe_measure_all(&probe, found.l2), is_sane = machine_is_within_bounds(&found);
    *out = is_sane ? found : facts;
    return complete && is_sane;
}
