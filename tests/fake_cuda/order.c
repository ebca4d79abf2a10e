/* The checker of order. Accesses of a file are in the list of its bucket. A write replaces the accesses that it covers
   and comes after, because whatever comes after the write comes after those too. */
#include "tests/fake_cuda/order.h"
#include "tests/fake_cuda/report.h"
#include "tests/fake_cuda/settings.h"
#include "tests/support/random.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct access *access_of(uint32_t number) { return &machine->accesses[number]; }
static uint32_t *bucket_of(uint64_t file) { return &machine->buckets[random_mixed(file) % BUCKETS]; }
static bool access_overlaps(const struct access *access, struct location location, uint64_t bytes)
{
    return access->location.file == location.file && access->location.offset < location.offset + bytes
        && location.offset < access->location.offset + access->bytes;
}
static bool process_is_dead(int32_t pid) { return kill(pid, 0) && errno == ESRCH; }

static void access_remove(uint32_t number)
{
    struct access *access = access_of(number);
    if (access->before) access_of(access->before)->after = access->after;
    else *bucket_of(access->location.file) = access->after;
    if (access->after) access_of(access->after)->before = access->before;
    access->state = ACCESS_UNUSED;
}
/* Takes an unused access, or the next one that is over. Accesses of killed processes never end. */
static uint32_t access_take(void)
{
    for (uint32_t tried = 0; tried < 2 * ACCESSES; tried++) {
        uint32_t number = machine->next_access++ % (ACCESSES - 1) + 1;
        struct access *access = access_of(number);
        if (access->state == ACCESS_UNUSED) return number;
        if (tried < ACCESSES || (access->state != ACCESS_OVER && !process_is_dead(access->stack.pid))) continue;
        access_remove(number);
        return number;
    }
    machine_full("accesses of operations that have not ended", ACCESSES);
}
void operation_declare(struct operation *operation, struct location location, uint64_t bytes, bool writes)
{
    if (!settings()->order || !bytes) return;
    machine_lock();
    uint32_t number = access_take(), *bucket = bucket_of(location.file);
    struct access *access = access_of(number);
    *access = (struct access){
        .state = ACCESS_PENDING,
        .next = operation->accesses,
        .after = *bucket,
        .writes = writes,
        .location = location,
        .bytes = bytes,
        .stack = operation->stack,
    };
    snprintf(access->call, sizeof access->call, "%s", operation->call);
    if (access->after) access_of(access->after)->before = number;
    operation->accesses = *bucket = number;
    machine_unlock();
}

static void conflict_report(const struct access *first, const struct access *second)
{
    struct report report = report_begin("%s %s bytes that %s %s, and nothing orders the two: no stream, event, wait "
                                        "for a value or synchronization",
        second->call, second->writes ? "writes" : "reads", first->call, first->writes ? "writes" : "reads");
    report_line(&report, "bytes %#llx to %#llx of memory %#llx, and %#llx to %#llx",
        (unsigned long long)first->location.offset, (unsigned long long)(first->location.offset + first->bytes),
        (unsigned long long)first->location.file, (unsigned long long)second->location.offset,
        (unsigned long long)(second->location.offset + second->bytes));
    report_stack(&report, "that began first", first->call, &first->stack);
    report_stack(&report, "that began second", second->call, &second->stack);
    report_end(&report);
}
/* An operation that begins has seen an older one if its clock has reached that one's epoch. */
static void access_check(const struct access *access, const struct clock *clock)
{
    for (uint32_t number = *bucket_of(access->location.file), after; number; number = after) {
        struct access *other = access_of(number);
        after = other->after;
        if (other->state < ACCESS_BEGUN || other->lane == access->lane) continue;
        if (!(other->writes || access->writes) || !access_overlaps(other, access->location, access->bytes)) continue;
        if (clock->seen[other->lane] < other->epoch) conflict_report(other, access);
    }
}
/* Removes the accesses that this one makes needless: it covers them, comes after them, and conflicts with at least as
   much. */
static void access_replace_others(uint32_t replacing, const struct clock *clock)
{
    const struct access *access = access_of(replacing);
    for (uint32_t number = *bucket_of(access->location.file), after; number; number = after) {
        const struct access *other = access_of(number);
        after = other->after;
        bool covers = other->location.file == access->location.file && other->state == ACCESS_OVER
            && access->location.offset <= other->location.offset
            && other->location.offset + other->bytes <= access->location.offset + access->bytes;
        bool stronger = access->writes || (!other->writes && other->lane == access->lane);
        if (number != replacing && covers && stronger && clock->seen[other->lane] >= other->epoch)
            access_remove(number);
    }
}
void accesses_begin(struct operation *operation)
{
    machine_lock();
    for (uint32_t number = operation->accesses; number; number = access_of(number)->next) {
        struct access *access = access_of(number);
        if (access->state != ACCESS_PENDING) continue;
        access->lane = operation->stream->lane;
        access->epoch = operation->epoch;
        access->state = ACCESS_BEGUN;
        access_check(access, &operation->stream->clock);
    }
    machine_unlock();
}
void accesses_end(struct operation *operation)
{
    machine_lock();
    for (uint32_t number = operation->accesses; number; number = access_of(number)->next) {
        access_of(number)->state = ACCESS_OVER;
        access_replace_others(number, &operation->stream->clock);
    }
    machine_unlock();
}

struct declared *operation_undeclare(struct operation *operation, size_t *count)
{
    size_t room = 0;
    *count = 0;
    machine_lock();
    for (uint32_t number = operation->accesses; number; number = access_of(number)->next) room++;
    struct declared *list = malloc((room + 1) * sizeof *list);
    if (!list) abort();
    for (uint32_t number = operation->accesses; number; number = access_of(number)->next) {
        const struct access *access = access_of(number);
        list[(*count)++] = (struct declared){ access->location, access->bytes, access->writes };
        access_remove(number);
    }
    operation->accesses = 0;
    machine_unlock();
    return list;
}
void operation_forget(struct operation *operation)
{
    machine_lock();
    for (uint32_t number = operation->accesses; number; number = access_of(number)->next) access_remove(number);
    machine_unlock();
    free(operation);
}
void accesses_check_free(struct location location, uint64_t bytes, const char *call, bool of_all)
{
    struct call_stack here;
    call_stack_take(&here);
    machine_lock();
    for (uint32_t number = *bucket_of(location.file); number; number = access_of(number)->after) {
        const struct access *access = access_of(number);
        if (access->state == ACCESS_OVER || !access_overlaps(access, location, bytes)) continue;
        if (of_all ? process_is_dead(access->stack.pid) : access->stack.pid != here.pid) continue;
        struct report report = report_begin("%s frees memory that %s has not finished to %s", call, access->call,
            access->writes ? "write" : "read");
        report_stack(&report, "that has not ended", access->call, &access->stack);
        report_stack(&report, "that frees", call, &here);
        report_end(&report);
    }
    machine_unlock();
}
void accesses_forget(struct location location, uint64_t bytes)
{
    machine_lock();
    for (uint32_t number = *bucket_of(location.file), after; number; number = after) {
        after = access_of(number)->after;
        if (access_overlaps(access_of(number), location, bytes) && access_of(number)->state == ACCESS_OVER)
            access_remove(number);
    }
    machine_unlock();
}
