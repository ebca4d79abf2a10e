/* Uneven counts: every rank writes its counts into the segment before the roll call; after it all ranks can read them.
   A rank's counts are read only if its declaration announces some, so most groups need no memory for them. */
#include "backend/execute/counts.h"
#include "backend/base/status.h"

/* Hashes the counts that all ranks must give equally. Other hosts compare the hash, because they cannot read the
   counts but must cut equally and send the expected lengths. */
static uint64_t uneven_hash_lengths(const struct uneven *u, int size)
{
    uint64_t sum = 0;
    for (int q = 0; q < size; q++) {
        sum = (sum ^ u->lengths[u->agreement][q]) * 0x9e3779b97f4a7c15u;
        sum ^= sum >> 32;
    }
    return sum;
}
static tutti_status counts_reserve(struct executor *x)
{
    const struct segment *s = x->site.segment;
    if (!x->counts_reserved)
        TRY(segment_reserve(s, segment_counts(s, x->site.index, 0, 0), segment_counts_bytes(s), "uneven counts"));
    x->counts_reserved = true;
    return TUTTI_OK;
}
tutti_status counts_publish_own(struct executor *x)
{
    const struct uneven *u = x->launch.uneven;
    const struct segment *s = x->site.segment;
    uint64_t extent = 0;
    int me = x->site.index;
    TRY(counts_reserve(x));
    for (int direction = INPUT; direction <= OUTPUT; direction++)
        for (int q = 0; q < s->columns; q++) {
            segment_counts(s, me, x->run.parity, direction)[q] = u->lengths[direction][q];
            segment_counts(s, me, x->run.parity, COUNTS_OFFSETS + direction)[q] = u->offsets[direction][q];
            if (u->lengths[direction][q] > extent) extent = u->lengths[direction][q];
        }
    x->run.declaration->extent = extent;
    bool told = x->site.spread && uneven_is_equal_on_ranks(u);
    x->run.declaration->counts = told ? uneven_hash_lengths(u, s->columns) : 0;
    return TUTTI_OK;
}
/* Compares the counts of index `a` with those of all ranks of this host or, if counts must be equal, with this
   rank's. */
static bool counts_rank_agrees(const struct executor *x, int a)
{
    const struct segment *s = x->site.segment;
    int parity = x->run.parity, alike = x->launch.uneven->agreement, rank = site_rank(&x->site, a);
    for (int b = 0; alike == IN_PAIRS && b < x->site.ranks; b++)
        if (segment_counts(s, a, parity, INPUT)[site_rank(&x->site, b)] != segment_counts(s, b, parity, OUTPUT)[rank])
            return false;
    for (int q = 0; alike != IN_PAIRS && q < s->columns; q++)
        if (segment_counts(s, a, parity, alike)[q] != segment_counts(s, x->site.index, parity, alike)[q]) return false;
    return true;
}
tutti_status counts_compare_all(struct executor *x)
{
    uint64_t extent = 0;
    for (int a = 0; a < x->site.ranks; a++) {
        const struct declaration *d = executor_declaration(x, a, x->operation);
        if (d->extent > extent) extent = d->extent;
        if (!counts_rank_agrees(x, a)) return TUTTI_MISMATCH;
    }
    x->run.extent = (size_t)extent;
    return TUTTI_OK;
}
