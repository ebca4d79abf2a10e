/* A stream that waits can be ended only by a write of the word, so a failure raises all words of all ranks above every
   position that may be awaited. A device may afterwards write a lower position, hence each poll raises them again until
   this rank's streams are idle. Before the words, the failure is written: a host that sees an operation done, and then
   no failure, knows that it was not released. An operation also counts as done only when all ranks have declared it
   equally, because streams may come to the end of different operations. */
#include "backend/streams/release.h"

/* This is added to a base, see POSITIONS_MOST. */
static const uint32_t POSITION_RELEASED = 1u << 30;
enum { RANK_BITS = 24 };

/* ---- done ---- */
/* Returns the number of the last operation that is done. */
static uint64_t site_read_done_number(const struct stream_site *site)
{
    uint32_t done = atomic_load_explicit(&stream_site_line_of_rank(site, site->rank)->done, memory_order_acquire);
    return site->enqueued - (uint32_t)((uint32_t)site->enqueued - done);
}
bool stream_site_is_idle(const struct stream_site *site) { return site_read_done_number(site) == site->enqueued; }

/* ---- failure ---- */
static void site_release_waiting_streams(struct stream_site *site)
{
    for (int rank = 0; rank < site->ranks && !stream_site_is_idle(site); rank++) {
        struct stream_line *line = stream_site_line_of_rank(site, rank);
        atomic_store(&line->position[WORD_ARRIVAL], site->base + POSITION_RELEASED);
        for (int slot = 0; slot < STREAM_SLOTS; slot++)
            atomic_store(&line->position[WORD_SLOTS + slot], site->slots_base + POSITION_RELEASED);
    }
}
/* Returns the group's failure as this thread's error. */
static tutti_status failure_report_as_error(uint64_t failure)
{
    tutti_status status = -(tutti_status)(failure >> RANK_BITS);
    int rank = (int)(failure & ((1u << RANK_BITS) - 1));
    return status_fail(status, "operations on streams have failed because of rank %d of this host: %s", rank,
        status_message(status));
}
void stream_site_fail_group(struct stream_site *site, tutti_status status, int rank)
{
    uint64_t none = 0, failure = (uint64_t)-status << RANK_BITS | (uint64_t)rank;
    atomic_compare_exchange_strong(&site->words->failure, &none, failure);
    site_release_waiting_streams(site);
}

/* ---- agreement ---- */
/* How a peer's declaration of an operation compares with that of this rank. */
enum declared { DECLARED_NOT_YET, DECLARED_EQUAL, DECLARED_OTHER };
/* A peer that has declared a later operation in this entry has compared this one itself, and found it equal. */
static enum declared declaration_compare_with_rank(const struct stream_site *site, int rank, uint64_t number)
{
    const struct stream_declaration *theirs =
                                        &stream_site_line_of_rank(site, rank)->declared[number % STREAM_OPERATIONS],
                                    *own = &stream_site_line_of_rank(site, site->rank)
                                                ->declared[number % STREAM_OPERATIONS];
    uint64_t before = atomic_load_explicit(&theirs->number, memory_order_acquire);
    if (before != number) return before > number ? DECLARED_EQUAL : DECLARED_NOT_YET;
    uint64_t fingerprint = atomic_load_explicit(&theirs->fingerprint, memory_order_acquire);
    if (atomic_load_explicit(&theirs->number, memory_order_relaxed) != number) return DECLARED_NOT_YET;
    return fingerprint == atomic_load_explicit(&own->fingerprint, memory_order_relaxed) ? DECLARED_EQUAL
                                                                                        : DECLARED_OTHER;
}
/* Compares the operations that all ranks have declared since the last call. */
static void site_compare_new_declarations(struct stream_site *site)
{
    for (; site->compared < site->enqueued; site->compared++) {
        for (int rank = 0; rank < site->ranks; rank++) {
            enum declared declared = declaration_compare_with_rank(site, rank, site->compared + 1);
            if (declared == DECLARED_OTHER) stream_site_fail_group(site, TUTTI_MISMATCH, rank);
            if (declared != DECLARED_EQUAL) return;
        }
    }
}
tutti_status stream_site_poll_group(struct stream_site *site)
{
    uint64_t done = site_read_done_number(site);
    site_compare_new_declarations(site);
    uint64_t failure = atomic_load(&site->words->failure);
    if (!failure) {
        site->completed = done < site->compared ? done : site->compared;
        return TUTTI_OK;
    }
    site_release_waiting_streams(site);
    return failure_report_as_error(failure);
}
tutti_status stream_site_test_operation(struct stream_site *site, uint64_t number)
{
    if (number <= site->completed) return TUTTI_OK;
    TRY(stream_site_poll_group(site));
    return number <= site->completed ? TUTTI_OK : TUTTI_IN_PROGRESS;
}
