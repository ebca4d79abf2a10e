/* Compares what this rank has declared with what the others have, and fails with the first difference. */
#include "backend/engine/mismatch.h"
#include "backend/engine/comm.h"
#include "backend/engine/error_text.h"
#include <stdio.h>

/* Fails the communicator because the rank `other` of this host made another call as operation `operation` (from 0). It
   may be an earlier operation, in which both ranks only sent. */
static tutti_status comm_fail_disagreement(tutti_comm *comm, int other, uint64_t operation)
{
    const struct group *group = &comm->group;
    const struct executor *executor = &comm->executor;
    struct declaration mine = *executor_declaration(executor, executor->site.index, operation);
    struct declaration theirs = *executor_declaration(executor, group_index_of_rank(group, other), operation);
    char what[2 * ERROR_TEXT_BYTES + 256];
    error_text_of_disagreement(group, group->rank, &mine, other, &theirs, what, sizeof what);
    return comm_fail_about_rank(comm, (struct failure_subject){ AGREE_DISAGREEMENT, other }, TUTTI_MISMATCH, "%s",
        what);
}
/* Returns a disagreement about rank b if a is this rank, otherwise about rank a. */
static struct failure_subject about_other_of_pair(const tutti_comm *comm, int a, int b)
{
    return (struct failure_subject){ AGREE_DISAGREEMENT, a == comm->group.rank ? b : a };
}
/* Fails the communicator because counts that must be equal differ. Names the first rank whose counts differ from those
   of index 0, so that all ranks report the same two. */
static tutti_status comm_fail_unequal_counts(tutti_comm *comm)
{
    const struct executor *executor = &comm->executor;
    int agreement = executor->launch.uneven->agreement, parity = executor->run.parity;
    const uint64_t *first = segment_counts(executor->site.segment, 0, parity, agreement);
    for (int a = 1; a < executor->site.ranks; a++)
        for (int q = 0; q < comm->group.size; q++) {
            uint64_t here =
                segment_counts(executor->site.segment, a, parity, agreement)[q] / executor->launch.element_bytes;
            uint64_t there = first[q] / executor->launch.element_bytes;
            if (here != there)
                return comm_fail_about_rank(comm,
                    about_other_of_pair(comm, group_rank_at_index(&comm->group, 0),
                        group_rank_at_index(&comm->group, a)),
                    TUTTI_MISMATCH,
                    "%s with uneven counts, operation %llu of %s: rank %d gives "
                    "rank %d a count of %llu elements, but rank %d gives it %llu; all ranks must give the same counts",
                    agreement == EQUAL_INPUT ? "reduce_scatter" : "all_gather",
                    (unsigned long long)executor->run.declaration->sequence, comm->group.name,
                    group_rank_at_index(&comm->group, 0), q, (unsigned long long)there,
                    group_rank_at_index(&comm->group, a), (unsigned long long)here);
        }
    return comm_fail(comm, TUTTI_INTERNAL, "a rank reported different counts, but the counts are equal");
}
/* Fails the communicator because uneven counts disagree, with the numbers of the first such pair of ranks. */
static tutti_status comm_fail_counts_mismatch(tutti_comm *comm)
{
    const struct executor *executor = &comm->executor;
    if (!executor->launch.uneven)
        return comm_fail(comm, TUTTI_INTERNAL, "a rank reported a disagreement, but the calls are equal");
    if (uneven_is_equal_on_ranks(executor->launch.uneven)) return comm_fail_unequal_counts(comm);
    for (int i = 0; i < executor->site.ranks; i++)
        for (int j = 0; j < executor->site.ranks; j++) {
            int a = site_rank(&executor->site, i), b = site_rank(&executor->site, j);
            uint64_t sent = segment_counts(executor->site.segment, i, executor->run.parity, INPUT)[b]
                / executor->launch.element_bytes;
            uint64_t expected = segment_counts(executor->site.segment, j, executor->run.parity, OUTPUT)[a]
                / executor->launch.element_bytes;
            if (sent != expected)
                return comm_fail_about_rank(comm, about_other_of_pair(comm, a, b), TUTTI_MISMATCH,
                    "all_to_all with uneven counts, operation %llu of %s: rank %d "
                    "sends %llu elements to rank %d, which expects %llu",
                    (unsigned long long)executor->run.declaration->sequence, comm->group.name, a,
                    (unsigned long long)sent, b, (unsigned long long)expected);
        }
    return comm_fail(comm, TUTTI_INTERNAL, "a rank reported different counts, but the counts are equal");
}
/* Fails the communicator because the two ends of a schedule's message differ in size. The ranks of one host have agreed
   before, so the other end is on another host. */
static tutti_status comm_fail_message_mismatch(tutti_comm *comm, const struct transfer *t)
{
    const struct group *group = &comm->group;
    uint64_t mine = 0;
    char what[224];
    failure_describe_running(comm, what, sizeof what);
    for (int i = 0; i < t->piece_count; i++) mine += t->pieces[i].wire;
    return comm_fail_about_rank(comm, (struct failure_subject){ AGREE_DISAGREEMENT, t->peer }, TUTTI_MISMATCH,
        "rank %d of %s runs %s and %s %llu bytes there, but rank %d on another host "
        "%s %llu: all ranks must make the same call",
        group->rank, group->name, what, t->is_send ? "sends" : "expects", (unsigned long long)mine, t->peer,
        t->is_send ? "expects" : "sends", (unsigned long long)t->peer_bytes);
}
tutti_status comm_fail_mismatch(tutti_comm *comm)
{
    const struct executor *executor = &comm->executor;
    if (executor->run.failed_message) return comm_fail_message_mismatch(comm, executor->run.failed_message);
    uint64_t operation;
    int other = executor_find_disagreement(executor, &operation);
    if (other < 0) return comm_fail_counts_mismatch(comm);
    return comm_fail_disagreement(comm, other, operation);
}
