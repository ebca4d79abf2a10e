/* Uneven counts: every rank writes its counts into the segment before the roll call, and after the roll call the ranks
   of the host can read them. A rank's counts are read only if its declaration announces some, so most groups need no
   memory for them. */
#include "backend/execute/counts.h"
#include "backend/base/status.h"

/* Hashes the `size` counts that all ranks must give equally. Other hosts compare the hash, because they cannot read the
   counts but must cut equally and send the expected lengths. */
static uint64_t uneven_hash_lengths(const struct uneven *uneven, int size)
{
    uint64_t sum = 0;
    for (int q = 0; q < size; q++) {
        sum = (sum ^ uneven->lengths[uneven->agreement][q]) * 0x9e3779b97f4a7c15u;
        sum ^= sum >> 32;
    }
    return sum;
}
/* Makes this rank's arrays of uneven counts in the segment real memory, once. */
static tutti_status counts_reserve(struct executor *executor)
{
    const struct segment *segment = executor->site.segment;
    if (!executor->counts_reserved)
        TRY(segment_reserve(segment, segment_counts(segment, executor->site.index, 0, 0), segment_counts_bytes(segment),
            "uneven counts"));
    executor->counts_reserved = true;
    return TUTTI_OK;
}
tutti_status counts_publish_own(struct executor *executor)
{
    const struct uneven *uneven = executor->launch.uneven;
    const struct segment *segment = executor->site.segment;
    uint64_t extent = 0;
    int index = executor->site.index;
    TRY(counts_reserve(executor));
    for (int direction = INPUT; direction <= OUTPUT; direction++)
        for (int column = 0; column < segment->columns; column++) {
            segment_counts(segment, index, executor->run.parity, direction)[column] =
                uneven->lengths[direction][column];
            segment_counts(segment, index, executor->run.parity, COUNTS_OFFSETS + direction)[column] =
                uneven->offsets[direction][column];
            if (uneven->lengths[direction][column] > extent) extent = uneven->lengths[direction][column];
        }
    executor->run.declaration->extent = extent;
    bool must_be_equal = executor->site.has_several_hosts && uneven_is_equal_on_ranks(uneven);
    executor->run.declaration->counts = must_be_equal ? uneven_hash_lengths(uneven, segment->columns) : 0;
    return TUTTI_OK;
}
/* True if the counts of local rank `a` agree: with those of all ranks of this host that it exchanges with, or, if
   counts must be equal, with this rank's. */
static bool counts_rank_agrees(const struct executor *executor, int a)
{
    const struct segment *segment = executor->site.segment;
    int parity = executor->run.parity, agreement = executor->launch.uneven->agreement,
        rank = site_rank(&executor->site, a);
    for (int b = 0; agreement == IN_PAIRS && b < executor->site.ranks; b++)
        if (segment_counts(segment, a, parity, INPUT)[site_rank(&executor->site, b)]
            != segment_counts(segment, b, parity, OUTPUT)[rank])
            return false;
    for (int q = 0; agreement != IN_PAIRS && q < segment->columns; q++)
        if (segment_counts(segment, a, parity, agreement)[q]
            != segment_counts(segment, executor->site.index, parity, agreement)[q])
            return false;
    return true;
}
tutti_status counts_compare_all(struct executor *executor)
{
    uint64_t extent = 0;
    for (int a = 0; a < executor->site.ranks; a++) {
        const struct declaration *declaration = executor_declaration(executor, a, executor->operation);
        if (declaration->extent > extent) extent = declaration->extent;
        if (!counts_rank_agrees(executor, a)) return TUTTI_MISMATCH;
    }
    executor->run.extent = (size_t)extent;
    return TUTTI_OK;
}
