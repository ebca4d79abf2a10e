/* A copy is fetched into its first destination, and the other destinations are copied from there. Terms of a sum are
   fetched block by block into memory of the program. A block is added while it is in the nearest cache, so it crosses
   memory only once, on its way from the peer. */
#include "backend/execute/fetch.h"
#include "backend/execute/bind.h"

enum { CACHE_LINE = 64 };

/* Returns the tensor of a peer in which a span lies. */
static const struct operand *executor_peer_operand(const struct executor *executor, struct span span)
{
    return &executor->peer_operands[site_index(&executor->site, span.rank)][span.buffer];
}
/* True if the kernel must read the span from the memory of another process. */
static bool span_is_fetched(const struct executor *executor, struct span span)
{
    return span.rank != executor->site.rank && span.buffer != SCRATCH && executor_peer_operand(executor, span)->source;
}
/* Reads bytes of a peer's span from address `at` of the peer. False: the read failed, which run.failed_read records. */
static bool span_fetch(struct executor *executor, struct span span, void *to, const void *at, size_t bytes)
{
    int error = bytes ? reading_copy(executor_peer_operand(executor, span)->source, to, (uintptr_t)at, bytes) : 0;
    if (error) executor->run.failed_read = (struct failed_read){ span.rank, span.buffer, error };
    return !error;
}
/* Performs a copy whose source the kernel reads from another process. False: the read failed. */
static bool step_fetch_copy(struct executor *executor, const struct step *step, struct span from,
    const struct part *part)
{
    struct program *program = executor->launch.program;
    if (!span_fetch(executor, from, program->piece.to[0], program->piece.from[0], part->bytes)) return false;
    program->piece.from[0] = program->piece.to[0];
    bind_compute_piece(executor, step, program->piece.to, program->piece.from, part);
    return true;
}
/* Reads one block (`bytes` bytes from offset `begin` of the chunks) of each source that the kernel must read, then sums
   it. block_bytes: the room for each source. False: a read failed. */
static bool step_fetch_and_add_block(struct executor *executor, const struct step *step, size_t begin, size_t bytes,
    size_t block_bytes)
{
    struct program *program = executor->launch.program;
    const struct span *spans = step_from(program->schedule, step);
    unsigned char *next_block = program->fetched;
    for (int f = 0; f < step->from_count; f++) {
        const unsigned char *at = (const unsigned char *)program->piece.from[f] + begin;
        program->block.from[f] = at;
        if (!span_is_fetched(executor, spans[f])) continue;
        if (!span_fetch(executor, spans[f], next_block, at, bytes)) return false;
        program->block.from[f] = next_block;
        next_block += block_bytes;
    }
    for (int d = 0; d < step->to_count; d++) program->block.to[d] = (unsigned char *)program->piece.to[d] + begin;
    bind_compute_piece(executor, step, program->block.to, program->block.from,
        &(struct part){ .bytes = bytes, .count = bytes / executor->launch.element_bytes });
    return true;
}
bool fetch_compute_step(struct executor *executor, const struct step *step, const struct part *part)
{
    struct program *program = executor->launch.program;
    const struct span *from = step_from(program->schedule, step);
    size_t peers = 0;
    for (int f = 0; f < step->from_count; f++) peers += span_is_fetched(executor, from[f]);
    if (!peers) {
        bind_compute_piece(executor, step, program->piece.to, program->piece.from, part);
        return true;
    }
    if (step->from_count == 1 && !step->finish) return step_fetch_copy(executor, step, from[0], part);
    size_t block = fetch_buffer_bytes(peers) / peers / CACHE_LINE * CACHE_LINE;
    for (size_t begin = 0; begin < part->bytes; begin += block) {
        size_t left = part->bytes - begin;
        if (!step_fetch_and_add_block(executor, step, begin, left < block ? left : block, block)) return false;
    }
    return true;
}
tutti_status fetch_handle_failure(struct executor *executor)
{
    const struct failed_read *failed = &executor->run.failed_read;
    const struct read_source *source =
        executor->peer_operands[site_index(&executor->site, failed->rank)][failed->buffer].source;
    tutti_status status = reading_failure_status(source, failed->error, executor->site.rank, failed->rank);
    executor->run.failed_read.error = 0;
    executor->blocked_peer = failed->rank;
    executor->blocked.soon = true;
    return status;
}
