/* A stream that waits can be ended only by a write of the word, so a failure raises all words of all ranks above every
   position that may be awaited. A device may afterwards write a lower position, hence each poll raises them again until
   all ranks are idle. An idle rank does so too, because another rank's thread may be blocked in the driver. Before the
   words, the failure is written: a host that sees an operation done, and then no failure, knows that it was not
   released. An operation also counts as done only when all ranks have declared it equally, because operations that
   differ may both end. */
#include "backend/streams/release.h"

/* This is added to a base, see POSITIONS_MOST. */
static const uint32_t POSITION_RELEASED = 1u << 30;
enum { RANK_BITS = 24 };

/* ---- done ---- */
uint64_t stream_site_read_done_number(const struct stream_site *site)
{
    uint32_t done = atomic_load(&stream_site_line_of_rank(site, site->rank)->done);
    uint64_t enqueued = atomic_load(&site->enqueued);
    return enqueued - (uint32_t)((uint32_t)enqueued - done);
}
bool stream_site_is_idle(const struct stream_site *site)
{
    return stream_site_read_done_number(site) == atomic_load(&site->enqueued);
}
bool stream_site_rank_has_enqueued(const struct stream_site *site, int rank, uint64_t number)
{
    return (int32_t)(atomic_load(&stream_site_line_of_rank(site, rank)->enqueued) - (uint32_t)number) >= 0;
}
bool stream_site_rank_uses_slots(const struct stream_site *site, int rank)
{
    const struct stream_line *line = stream_site_line_of_rank(site, rank);
    uint32_t done = atomic_load(&line->done), last = (uint32_t)atomic_load(&site->enqueued);
    return done != atomic_load(&line->enqueued) && (int32_t)(done - last) < 0;
}
static bool site_sees_all_ranks_idle(const struct stream_site *site)
{
    for (int rank = 0; rank < site->ranks; rank++) {
        const struct stream_line *line = stream_site_line_of_rank(site, rank);
        if (atomic_load(&line->done) != atomic_load(&line->enqueued)) return false;
    }
    return true;
}

/* ---- failure ---- */
static void site_release_waiting_streams(struct stream_site *site)
{
    for (int rank = 0; rank < site->ranks && !site_sees_all_ranks_idle(site); rank++) {
        struct stream_line *line = stream_site_line_of_rank(site, rank);
        atomic_store(&line->position[WORD_ARRIVAL], site->base + POSITION_RELEASED);
        for (int slot = 0; slot < STREAM_SLOTS; slot++)
            atomic_store(&line->position[WORD_SLOTS + slot], site->slots_base + POSITION_RELEASED);
    }
}
/* Writes the end of an operation of which no stream has work, once the operations before have ended. */
static void site_write_host_end(struct stream_site *site)
{
    uint64_t number = atomic_load(&site->host_end);
    if (number && stream_site_read_done_number(site) == number - 1)
        atomic_store(&stream_site_line_of_rank(site, site->rank)->done, (uint32_t)number);
}
/* Asks the driver at some polls whether the device has failed. If so, no stream runs any more, so the host writes the
   end of all operations. While another thread enqueues, the driver may be blocked, and this rank must not be. */
static tutti_status site_check_device(struct stream_site *site)
{
    enum { POLLS_EACH = 32 };
    tutti_status status = TUTTI_OK;
    bool entered;
    if (stream_site_is_idle(site) || atomic_fetch_add(&site->polls, 1) % POLLS_EACH) return TUTTI_OK;
    if (pthread_mutex_trylock(&site->driver_lock)) return TUTTI_OK;
    if (!stream_site_enter_context(site, &entered)) {
        CUresult result = cuda.cuStreamQuery(site->idle_stream);
        stream_site_leave_context(entered);
        if (result && result != CUDA_ERROR_NOT_READY && result != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
            status = cuda_check(result, "work of the device (cuStreamQuery)");
    }
    if (status) {
        stream_site_fail_group(site, status, site->rank);
        atomic_store(&stream_site_line_of_rank(site, site->rank)->done, (uint32_t)atomic_load(&site->enqueued));
    }
    pthread_mutex_unlock(&site->driver_lock);
    return status;
}
static tutti_status failure_get_status(uint64_t failure) { return -(tutti_status)(failure >> 2 * RANK_BITS); }
static int failure_get_finder(uint64_t failure) { return (int)(failure >> RANK_BITS & ((1u << RANK_BITS) - 1)); }
static int failure_get_rank(uint64_t failure) { return (int)(failure & ((1u << RANK_BITS) - 1)); }
/* Returns the group's failure as this thread's error. */
static tutti_status failure_report_as_error(uint64_t failure)
{
    tutti_status status = failure_get_status(failure);
    int rank = failure_get_rank(failure);
    return status_fail(status, "operations on streams have failed because of rank %d of this host: %s", rank,
        status_message(status));
}
void stream_site_fail_group(struct stream_site *site, tutti_status status, int rank)
{
    uint64_t none = 0,
             failure = (uint64_t)-status << 2 * RANK_BITS | (uint64_t)site->rank << RANK_BITS | (uint64_t)rank;
    atomic_compare_exchange_strong(&site->words->failure, &none, failure);
    site_release_waiting_streams(site);
}

/* ---- agreement ---- */
/* How a peer's declaration of an operation compares with that of this rank. */
enum declared { DECLARED_NOT_YET, DECLARED_EQUAL, DECLARED_OTHER };
/* The bytes that a rank sends to a peer and expects from it in an operation. */
struct counts_with_peer { uint64_t sent, expected; };
/* Reads what a rank has declared of an operation. Returns false if the entry has another operation. */
static bool site_read_fingerprint(const struct stream_site *site, int rank, uint64_t number, uint64_t *out)
{
    const struct stream_declaration *declared =
        &stream_site_line_of_rank(site, rank)->declared[number % STREAM_OPERATIONS];
    if (atomic_load_explicit(&declared->number, memory_order_acquire) != number) return false;
    *out = atomic_load_explicit(&declared->fingerprint, memory_order_acquire);
    return atomic_load_explicit(&declared->number, memory_order_relaxed) == number;
}
static bool site_read_counts(const struct stream_site *site, int rank, int peer, uint64_t number,
    struct counts_with_peer *out)
{
    const struct stream_counts *counts = stream_words_counts(site->words, site->ranks, rank, number);
    if (atomic_load_explicit(&counts->number, memory_order_acquire) != number) return false;
    out->sent = atomic_load_explicit(&counts->with[peer].sent, memory_order_acquire);
    out->expected = atomic_load_explicit(&counts->with[peer].expected, memory_order_acquire);
    return atomic_load_explicit(&counts->number, memory_order_relaxed) == number;
}
/* Compares counts that agree in pairs. A peer whose entry has a later operation has compared this one itself. */
static enum declared counts_compare_with_rank(const struct stream_site *site, int rank, uint64_t number)
{
    struct counts_with_peer own, theirs;
    const struct stream_counts *counts = stream_words_counts(site->words, site->ranks, rank, number);
    if (!site_read_counts(site, site->rank, rank, number, &own)) return DECLARED_EQUAL;
    if (!site_read_counts(site, rank, site->rank, number, &theirs))
        return atomic_load(&counts->number) > number ? DECLARED_EQUAL : DECLARED_NOT_YET;
    return theirs.sent == own.expected && theirs.expected == own.sent ? DECLARED_EQUAL : DECLARED_OTHER;
}
/* A peer that has declared a later operation in this entry has compared this one itself, and found it equal. */
static enum declared declaration_compare_with_rank(const struct stream_site *site, int rank, uint64_t number)
{
    uint64_t own = 0, theirs;
    const struct stream_line *line = stream_site_line_of_rank(site, rank);
    site_read_fingerprint(site, site->rank, number, &own);
    if (!site_read_fingerprint(site, rank, number, &theirs))
        return atomic_load(&line->declared[number % STREAM_OPERATIONS].number) > number ? DECLARED_EQUAL
                                                                                        : DECLARED_NOT_YET;
    return theirs == own ? counts_compare_with_rank(site, rank, number) : DECLARED_OTHER;
}
/* True if two ranks, which may be one, have declared an operation unequally. */
static bool site_ranks_disagree(const struct stream_site *site, int one, int other, uint64_t number,
    struct stream_disagreement *out)
{
    uint64_t of_one, of_other;
    struct counts_with_peer sends, expects;
    *out = (struct stream_disagreement){ .number = number, .one = one, .other = other };
    if (!site_read_fingerprint(site, one, number, &of_one) || !site_read_fingerprint(site, other, number, &of_other))
        return false;
    if (of_one != of_other) return true;
    if (!site_read_counts(site, one, other, number, &sends) || !site_read_counts(site, other, one, number, &expects))
        return false;
    out->is_about_counts = true;
    out->sent = sends.sent;
    out->expected = expects.expected;
    return out->sent != out->expected;
}
bool stream_site_find_disagreement(const struct stream_site *site, struct stream_disagreement *out)
{
    struct stream_disagreement tried;
    bool found = false;
    for (int one = 0; one < site->ranks; one++)
        for (int other = 0; other < site->ranks; other++)
            for (int entry = 0; entry < STREAM_OPERATIONS; entry++) {
                uint64_t number = atomic_load(&stream_site_line_of_rank(site, one)->declared[entry].number);
                if (!number || (found && number >= out->number)) continue;
                if (!site_ranks_disagree(site, one, other, number, &tried)) continue;
                *out = tried;
                found = true;
            }
    return found;
}
/* Compares the operations that all ranks have declared since the last call. The caller holds the lock. */
static void site_compare_new_declarations(struct stream_site *site)
{
    for (uint64_t last = atomic_load(&site->enqueued); site->compared < last; site->compared++) {
        for (int rank = 0; rank < site->ranks; rank++) {
            enum declared declared = declaration_compare_with_rank(site, rank, site->compared + 1);
            if (declared == DECLARED_OTHER) stream_site_fail_group(site, TUTTI_MISMATCH, rank);
            if (declared != DECLARED_EQUAL) return;
        }
    }
}
/* Polls the group without a call of the driver, and returns its failure or 0. */
static uint64_t site_poll_failure(struct stream_site *site)
{
    pthread_mutex_lock(&site->compare_lock);
    uint64_t done = stream_site_read_done_number(site);
    site_compare_new_declarations(site);
    uint64_t failure = atomic_load(&site->words->failure);
    if (!failure) site->completed = done < site->compared ? done : site->compared;
    pthread_mutex_unlock(&site->compare_lock);
    if (failure) {
        site_release_waiting_streams(site);
        site_write_host_end(site);
    }
    return failure;
}
tutti_status stream_site_poll_group(struct stream_site *site, int *rank, int *finder)
{
    uint64_t failure = site_poll_failure(site);
    tutti_status found = site_check_device(site);
    *rank = failure ? failure_get_rank(failure) : -1;
    *finder = failure ? failure_get_finder(failure) : site->rank;
    return failure ? failure_get_status(failure) : found;
}
tutti_status stream_site_check_group(struct stream_site *site)
{
    uint64_t failure = site_poll_failure(site);
    return failure ? failure_report_as_error(failure) : TUTTI_OK;
}
