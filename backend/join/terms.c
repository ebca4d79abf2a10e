/* The texts of terms, their digest, and the error that shows where two terms differ. */
#include "backend/join/terms.h"
#include "backend/base/status.h"
#include "backend/base/text.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>

static_assert(sizeof(struct terms) == 216 && sizeof(struct statement) == sizeof(struct member) + 216, "no padding");

/* ---- the digest: FNV-1a ---- */
static const uint64_t digest_begin = 0xcbf29ce484222325u;
/* Returns the digest with `bytes` bytes more. */
static uint64_t digest_add(uint64_t digest, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) digest = (digest ^ at[i]) * 0x100000001b3u;
    return digest;
}
/* Returns the digest with a text more, of which it covers the terminating zero, too. */
static uint64_t digest_add_text(uint64_t digest, const char *text)
{
    return digest_add(digest, text, strlen(text) + 1);
}

/* ---- the texts ---- */
/* Returns how many of the first `left` members are consecutive numbers. */
static int members_run_length(const int *members, int left)
{
    int length = 1;
    while (length < left && members[length] == members[length - 1] + 1) length++;
    return length;
}
void terms_print_members(const int *members, int count, char *out, size_t bytes)
{
    char run[28];
    size_t used = 0, rest = sizeof " and 2147483647 more";
    *out = 0;
    for (int i = 0, length; i < count; i += length) {
        length = members_run_length(members + i, count - i);
        if (length < 3) length = 1;
        int printed = snprintf(run, sizeof run, "%s%d", i ? ", " : "", members[i]);
        if (length > 1)
            printed += snprintf(run + printed, sizeof run - (size_t)printed, "-%d", members[i] + length - 1);
        if (used + (size_t)printed + rest > bytes) {
            snprintf(out + used, bytes - used, " and %d more", count - i);
            return;
        }
        memcpy(out + used, run, (size_t)printed + 1);
        used += (size_t)printed;
    }
}
/* Adds the chosen algorithms to the text of the terms and to the digest, which it returns. NULL: no algorithm is
   chosen. */
static uint64_t terms_add_algorithms(_Atomic(const struct algorithm *) chosen[COLLECTIVE_COUNT], uint64_t digest,
    struct terms *out)
{
    size_t used = 0;
    for (int f = 0; f < COLLECTIVE_COUNT; f++) {
        const struct algorithm *algorithm = atomic_load(&chosen[f]);
        if (!algorithm) continue;
        char entry[64];
        snprintf(entry, sizeof entry, "%s%s=%s", used ? "," : "", collective_name((enum collective)f), algorithm->name);
        digest = digest_add_text(digest, entry);
        if (used < sizeof out->algorithms)
            used += (size_t)snprintf(out->algorithms + used, sizeof out->algorithms - used, "%s", entry);
    }
    return digest;
}
void terms_init(const tutti_config *config, _Atomic(const struct algorithm *) chosen[COLLECTIVE_COUNT],
    struct terms *out)
{
    const char *name = config->name ? config->name : "the group";
    *out = (struct terms){ .rank = config->rank };
    snprintf(out->name, sizeof out->name, "%s", name);
    uint64_t digest = digest_add_text(digest_begin, name);
    if (config->members) {
        out->members_count = (uint32_t)config->size;
        terms_print_members(config->members, config->size, out->members, sizeof out->members);
        out->members_digest = digest_add(digest_begin, config->members, (size_t)config->size * sizeof *config->members);
        digest = digest_add(digest, &out->members_digest, sizeof out->members_digest);
    }
    out->digest = terms_add_algorithms(chosen, digest, out);
    /* The digest is of the name itself; the texts are for errors. */
    terms_make_printable(out);
}
void terms_make_printable(struct terms *terms)
{
    text_make_printable(terms->name, sizeof terms->name);
    text_make_printable(terms->members, sizeof terms->members);
    text_make_printable(terms->algorithms, sizeof terms->algorithms);
}

/* ---- the error ---- */
static const char *text_or_none(const char *text) { return *text ? text : "none"; }
tutti_status terms_fail_mismatch(const struct statement *first, const struct statement *second)
{
    const struct terms *a = &first->terms, *b = &second->terms;
    const struct identity *by_a = &first->member.identity, *by_b = &second->member.identity;
    unsigned long long pid_a = by_a->pid, pid_b = by_b->pid;
    if (strcmp(a->name, b->name) != 0)
        return status_fail(TUTTI_MISMATCH,
            "rank %d (process %llu on %.39s) calls the group \"%s\", and rank %d (process %llu on %.39s) calls it "
            "\"%s\": all ranks must give the same name, and each group of a store needs one of its own",
            a->rank, pid_a, by_a->host, a->name, b->rank, pid_b, by_b->host, b->name);
    bool same_words = a->members_count == b->members_count && strcmp(a->members, b->members) == 0;
    if (a->members_digest == b->members_digest)
        return status_fail(TUTTI_MISMATCH,
            "rank %d (process %llu on %.39s) asks for algorithms %s for %s, and rank %d (process %llu on %.39s) for "
            "%s: a group's options must be the same on all its ranks",
            a->rank, pid_a, by_a->host, text_or_none(a->algorithms), a->name, b->rank, pid_b, by_b->host,
            text_or_none(b->algorithms));
    return status_fail(TUTTI_MISMATCH,
        "ranks disagree about who is in %.31s: %u members, %s, according to its rank %d (process %llu on %.24s); %u "
        "members, %s, according to its rank %d (process %llu on %.24s)%s. All ranks must make the same groups in "
        "the same order; in torch, only members call new_group(ranks, use_local_synchronization=True)",
        a->name, a->members_count, text_or_none(a->members), a->rank, pid_a, by_a->host, b->members_count,
        text_or_none(b->members), b->rank, pid_b, by_b->host,
        same_words ? "; they differ in members that are not shown" : "");
}

/* ---- the current job ---- */
static _Atomic uint64_t current_job;
uint64_t job_current(void) { return atomic_load(&current_job); }
static uint64_t job_of_member(const struct member *first)
{
    uint64_t job;
    memcpy(&job, first->token, sizeof job);
    return job;
}
void job_begin(const struct member *first) { atomic_store(&current_job, job_of_member(first)); }
void job_end(const struct member *first)
{
    uint64_t ended = job_of_member(first);
    atomic_compare_exchange_strong(&current_job, &ended, 0);
}
