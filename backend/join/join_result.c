/* The checks of rank 0 and their error texts. Texts of other processes are made printable before use. */
#include "backend/join/join_result.h"
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/base/text.h"
#include "backend/transports/fabrics.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { MOST_NAMED = 16 };
static const char magic[8] = "tutti-v";
static_assert(sizeof(struct member) == 232 && sizeof(struct join_result) == 528, "no padding");

/* ---- rank 0 collects ---- */
bool member_has_come(const struct member *member) { return member->build != 0; }
void member_copy_record(struct member *out, const struct member *member)
{
    if (out != member) *out = *member;
    text_make_printable(out->group, sizeof out->group);
    text_make_printable(out->identity.host, sizeof out->identity.host);
}
/* Writes the names of a member's fabrics to `out` and returns it; returns "an unknown transport" if the member has
   none. */
static const char *member_fabrics_text(const struct member *m, char out[FABRIC_TEXT_BYTES])
{
    fabrics_print_names(m->fabrics, out);
    return *out ? out : "an unknown transport";
}
tutti_status member_check_match(const struct member *mine, int rank, const struct member *theirs)
{
    if (theirs->build != mine->build)
        return status_fail(TUTTI_MISMATCH,
            "rank %d joins %s with a tutti built from other sources (%08x) than rank 0's (%08x): all ranks must run "
            "a tutti of the same sources",
            rank, mine->group, theirs->build, mine->build);
    if (theirs->size != mine->size)
        return status_fail(TUTTI_MISMATCH, "rank %d joins %s as a group of %u ranks, rank 0 as one of %u", rank,
            mine->group, theirs->size, mine->size);
    if (theirs->terms != mine->terms)
        return status_fail(TUTTI_MISMATCH,
            "rank %d has other members, other options or another name for %s than rank 0: they must be the same on "
            "all ranks",
            rank, mine->group);
    if ((theirs->simulates ^ mine->simulates) == SIMULATES_LINKS)
        return status_fail(TUTTI_MISMATCH,
            "rank %d uses %s between the hosts that TUTTI_HOSTS simulates for %s, but rank 0 uses %s: "
            "TUTTI_TRANSPORT must be the same on all ranks",
            rank, theirs->simulates & SIMULATES_LINKS ? "a network" : "shared memory", mine->group,
            mine->simulates & SIMULATES_LINKS ? "a network" : "shared memory");
    if (theirs->simulates != mine->simulates)
        return status_fail(TUTTI_MISMATCH,
            "rank %d simulates other hosts than rank 0 for %s: TUTTI_HOSTS must be the same on all ranks, or unset "
            "on all",
            rank, mine->group);
    char their_text[FABRIC_TEXT_BYTES], my_text[FABRIC_TEXT_BYTES];
    if (theirs->fabrics != mine->fabrics)
        return status_fail(TUTTI_MISMATCH,
            "rank %d exchanges messages with other hosts by %s, but rank 0 of %s by %s: set TUTTI_TRANSPORT to the "
            "same on all ranks (its default is ucx on hosts with an active RDMA port, and tcp on others)",
            rank, member_fabrics_text(theirs, their_text), mine->group, member_fabrics_text(mine, my_text));
    if (theirs->encrypts != mine->encrypts)
        return status_fail(TUTTI_MISMATCH,
            "rank %d %s what it sends to other hosts, but rank 0 of %s %s: TUTTI_ENCRYPTION must be the same on all "
            "ranks",
            rank, theirs->encrypts ? "encrypts" : "does not encrypt", mine->group,
            mine->encrypts ? "does" : "does not");
    if (!theirs->contact.family != !mine->contact.family)
        return status_fail(TUTTI_MISMATCH,
            "rank %d of %s %s for ranks of other hosts, but rank 0 %s: TUTTI_SOCKET_IFNAME, TUTTI_TRANSPORT and the "
            "host of the store must be given on all ranks or on none",
            rank, mine->group, theirs->contact.family ? "has an address" : "has no address",
            mine->contact.family ? "has one" : "has none");
    return TUTTI_OK;
}
tutti_status member_fail_unable(const struct member *member, int rank, const char *why)
{
    bool known = member->status < 0 && member->status >= TUTTI_INTERNAL;
    return status_fail(known ? (tutti_status)member->status : TUTTI_INTERNAL,
        "rank %d (process %llu on %.40s) cannot join %s: %.400s", rank, (unsigned long long)member->identity.pid,
        member->identity.host, member->group, why);
}
static uint32_t members_count_absent(const struct member *table, uint32_t size)
{
    uint32_t absent = 0;
    for (uint32_t r = 0; r < size; r++) absent += !member_has_come(&table[r]);
    return absent;
}
void members_list_absent(const struct member *table, uint32_t size, char *out, size_t bytes)
{
    uint32_t absent = members_count_absent(table, size), named = 0;
    size_t used = (size_t)snprintf(out, bytes, absent == 1 ? "rank" : "ranks");
    for (uint32_t r = 0; r < size && named < MOST_NAMED && used < bytes; r++)
        if (!member_has_come(&table[r]))
            used += (size_t)snprintf(out + used, bytes - used, "%s%u", named++ ? ", " : " ", r);
    if (absent > named && used < bytes) snprintf(out + used, bytes - used, " and %u more", absent - named);
}
tutti_status members_fail_absent(const struct member *mine, const struct member *table)
{
    char ranks[256];
    members_list_absent(table, mine->size, ranks, sizeof ranks);
    const char *have = members_count_absent(table, mine->size) == 1 ? "has" : "have";
    return status_fail(TUTTI_TIMEOUT,
        "%s of %u %s not joined %s within %lld ms: check whether it was started and whether it failed, or raise the "
        "timeout",
        ranks, mine->size, have, mine->group, (long long)mine->timeout_ms);
}

/* ---- rank 0 decides ---- */
struct member *members_create(const struct member *mine)
{
    struct member *made = memory_alloc_zeroed(mine->size, sizeof *made);
    if (!made) status_fail(TUTTI_NO_MEMORY, "no memory for the %u members of %s", mine->size, mine->group);
    return made;
}
void join_result_set_formed(struct join_result *out, uint32_t size)
{
    *out = (struct join_result){ .status = TUTTI_OK, .size = size };
    memcpy(out->magic, magic, sizeof magic);
}
bool join_result_is_formed(const struct join_result *result, size_t bytes)
{
    return bytes == FORMED_BYTES && memcmp(result->magic, magic, sizeof magic) == 0 && result->status == TUTTI_OK;
}
void join_result_decide(struct join_result *result, tutti_status status, uint32_t size)
{
    join_result_set_formed(result, size);
    result->status = status;
    if (status != TUTTI_OK) snprintf(result->detail, sizeof result->detail, "%.511s", status_detail());
}

/* ---- the other ranks accept ---- */
tutti_status join_result_apply(struct join_result *result, const struct member *mine)
{
    text_make_printable(result->detail, sizeof result->detail);
    bool known = result->status == TUTTI_OK || (result->status < 0 && result->status >= TUTTI_INTERNAL);
    if (memcmp(result->magic, magic, sizeof magic) != 0 || !known)
        return status_fail(TUTTI_MISMATCH, "rank 0 of %s runs another version of tutti", mine->group);
    if (result->status != TUTTI_OK) return status_repeat((tutti_status)result->status, result->detail);
    if (result->size == mine->size) return TUTTI_OK;
    return status_fail(TUTTI_MISMATCH, "rank 0 joins %s as a group of %u ranks, this rank as one of %u", mine->group,
        result->size, mine->size);
}
void members_make_printable(struct member *table, uint32_t size)
{
    for (uint32_t r = 0; r < size; r++) member_copy_record(&table[r], &table[r]);
}
tutti_status members_check_own(const struct member *table, int rank, const struct member *mine)
{
    struct member own;
    const struct member *found = &table[rank];
    const struct identity *me = &mine->identity, *other = &found->identity;
    member_copy_record(&own, mine);
    explicit_bzero(own.key, sizeof own.key);
    if (memcmp(found, &own, sizeof own) == 0) return TUTTI_OK;
    return status_fail(TUTTI_INVALID_ARGUMENT,
        "two processes have joined %s as rank %d: this process (%llu) and process %llu on %.39s", mine->group, rank,
        (unsigned long long)me->pid, (unsigned long long)other->pid, other->host);
}

/* ---- waiting ---- */
tutti_status join_check_cancelled(bool (*is_cancelled)(void *context), void *context, int rank, const char *group)
{
    if (!is_cancelled || !is_cancelled(context)) return TUTTI_OK;
    return status_fail(TUTTI_ABORTED, "rank %d has cancelled joining %s", rank, group);
}
int64_t deadline_add_ms(int64_t deadline_ms, int64_t more_ms)
{
    return deadline_ms > INT64_MAX - more_ms ? INT64_MAX : deadline_ms + more_ms;
}
int64_t deadline_remaining_ms(int64_t deadline_ms)
{
    int64_t left = deadline_ms - clock_ms();
    return left < 1 ? 1 : left > INT32_MAX ? INT32_MAX : left;
}
