/* A block and an offset name a tensor in the arena. Views of the peers' blocks are held from operation to operation,
 * and requested again only for another block, because block numbers are never reused. */
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/engine/comm.h"
#include "backend/memory/arena.h"
#include "backend/processes/views.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- this rank's declaration ---- */
/* Returns the bytes from the beginning of a rank's tensor to its end, or 0 if the rank has no such tensor. `size` is
   the number of ranks. For uneven counts `lengths` and `offsets` have the bytes of each part, else they are NULL. */
static size_t tensor_bytes(const struct operation *op, int rank, enum buffer buffer, int size, const size_t *lengths,
    const size_t *offsets)
{
    size_t bytes = 0;
    if (!lengths)
        return collective_has_buffer((enum collective)op->collective, op->root, rank, buffer)
            ? op->part_bytes * (size_t)collective_count_chunks((enum collective)op->collective, buffer, size)
            : 0;
    for (int q = 0; q < size; q++)
        if (lengths[q] && offsets[q] + lengths[q] > bytes) bytes = offsets[q] + lengths[q];
    return bytes;
}
/* Returns tensor_bytes of this rank's input or output. */
static size_t tensor_own_bytes(const tutti_comm *comm, const struct operation *op, enum buffer buffer)
{
    const struct uneven *uneven = op->uneven;
    return tensor_bytes(op, comm->group.rank, buffer, comm->group.size, uneven ? uneven->lengths[buffer] : NULL,
        uneven ? uneven->offsets[buffer] : NULL);
}
/* Returns true if input and output overlap as the in-place form of the collective requires. */
static bool operation_is_in_place(const tutti_comm *comm, const struct operation *op)
{
    const unsigned char *input = op->input, *output = op->output;
    int inputs = collective_count_chunks((enum collective)op->collective, INPUT, comm->group.size),
        outputs = collective_count_chunks((enum collective)op->collective, OUTPUT, comm->group.size);
    size_t mine = (size_t)comm->group.rank * op->part_bytes;
    const struct uneven *uneven = op->uneven;
    if (uneven && uneven->agreement == EQUAL_OUTPUT) return input == output + uneven->offsets[OUTPUT][comm->group.rank];
    if (uneven && uneven->agreement == EQUAL_INPUT) return output == input + uneven->offsets[INPUT][comm->group.rank];
    /* An all-to-all never works in place. */
    if (inputs > 1 && outputs > 1) return false;
    if (inputs > 1) return output == input + mine;
    return input == output + (outputs > 1 ? mine : 0);
}
/* Returns true if peers could read all parts of this rank's input or output, of `bytes` bytes. The parts of uneven
   counts may lie in several pieces of memory, of different kinds. */
static bool tensor_is_readable(const tutti_comm *comm, const struct operation *op, enum buffer buffer, size_t bytes)
{
    const unsigned char *base = buffer == INPUT ? op->input : op->output;
    const size_t *lengths = op->uneven ? op->uneven->lengths[buffer] : &bytes;
    const size_t *offsets = op->uneven ? op->uneven->offsets[buffer] : &(size_t){ 0 };
    int parts = op->uneven ? comm->group.size : 1;
    for (int q = 0; q < parts; q++)
        if (lengths[q] && !reading_is_possible(base + offsets[q], lengths[q])) return false;
    return true;
}
/* Declares the addresses of this rank's private tensors, which have `input` and `output` bytes. Returns true if peers
   can read them, and this rank can read its peers. */
static bool tensors_describe_private(tutti_comm *comm, const struct operation *op, size_t input, size_t output)
{
    struct declaration *declaration = comm->executor.run.declaration;
    declaration->tensor[INPUT] = (struct location){ 0, (uintptr_t)op->input };
    declaration->tensor[OUTPUT] = (struct location){ 0, (uintptr_t)op->output };
    return tensors_can_read_peers(comm) && tensor_is_readable(comm, op, INPUT, input)
        && tensor_is_readable(comm, op, OUTPUT, output);
}
/* Sets at[INPUT] and at[OUTPUT] to the locations of tensors of `input` and `output` bytes. A tensor of 0 bytes, which
   this rank does not have, gets block 0. Returns false if one of the others is not in the arena. */
static bool tensors_find_shared(const struct operation *op, size_t input, size_t output, struct location at[2])
{
    at[INPUT] = at[OUTPUT] = (struct location){ 0, 0 };
    return (!input || arena_find(op->input, input, &at[INPUT]))
        && (!output || arena_find(op->output, output, &at[OUTPUT]));
}
enum placement_kind tensors_guess_placement(const tutti_comm *comm, const struct operation *op)
{
    struct location at[2];
    size_t input = tensor_own_bytes(comm, op, INPUT), output = tensor_own_bytes(comm, op, OUTPUT);
    bool in_place = !input || !output || operation_is_in_place(comm, op);
    if (tensors_find_shared(op, input, output, at)) return in_place ? TENSORS_SHARED_IN_PLACE : TENSORS_SHARED_APART;
    return in_place ? TENSORS_OPEN_IN_PLACE : TENSORS_OPEN_APART;
}
void tensors_describe(tutti_comm *comm, const struct operation *op, bool is_required, bool may_read)
{
    struct declaration *declaration = comm->executor.run.declaration;
    size_t input = tensor_own_bytes(comm, op, INPUT), output = tensor_own_bytes(comm, op, OUTPUT);
    bool shared = tensors_find_shared(op, input, output, declaration->tensor);
    bool in_place = !input || !output || operation_is_in_place(comm, op);
    bool open = may_read && (shared ? tensors_can_read_peers(comm) : tensors_describe_private(comm, op, input, output));
    declaration->flags = (shared ? TENSOR_SHARED : 0u) | (in_place ? TENSOR_IN_PLACE : 0u)
        | (is_required ? TENSOR_REQUIRED : 0u) | (open ? TENSOR_OPEN : 0u)
        | (open && comm->launcher.single_copy > 0 ? TENSOR_READING : 0u);
    comm->executor.run.tensors_declared = shared || open;
}

/* ---- reading peers' memory ---- */
/* Returns the process from which the memory of a rank of this host is read; process 0 for a rank of this process. */
static struct read_source tensors_get_source(const struct group *group, int index)
{
    const struct peer *peer = group->peers[group_rank_at_index(group, index)];
    return peer ? peer_memory_source(peer, segment_join_info(group->segment, index)->nonce_at)
                : (struct read_source){ .process = 0 };
}
bool tensors_can_read_peers(tutti_comm *comm)
{
    struct tensor_access *access = &comm->tensor_access;
    const struct group *group = &comm->group;
    int known = atomic_load_explicit(&access->reading, memory_order_relaxed);
    if (known) return known == READING_WORKS;
    access->sources = memory_alloc_zeroed((size_t)access->ranks, sizeof *access->sources);
    /* Without memory the answer stays unknown, and the next call tries again. */
    if (!access->sources) return false;
    for (int i = 0; i < access->ranks && !access->error; i++) {
        access->sources[i] = tensors_get_source(group, i);
        access->unreadable = group_rank_at_index(group, i);
        /* A rank without a peer entry belongs to this process, which can always read it. */
        if (group->peers[access->unreadable]) access->error = reading_test_source(&access->sources[i]);
    }
    atomic_store(&access->reading, access->error ? READING_REFUSED : READING_WORKS);
    if (access->error)
        LOG(DEBUG, "%s rank %d: the memory of rank %d cannot be read: %s", group->name, group->rank, access->unreadable,
            reading_reason(access->error));
    return !access->error;
}

/* ---- the placement, equal on all ranks of a host ---- */
/* Returns the declaration of the rank with index `peer` on this host for the running operation. */
static const struct declaration *tensors_get_declaration(const tutti_comm *comm, int peer)
{
    return executor_declaration(&comm->executor, peer, comm->executor.operation);
}
struct placement tensors_get_placement(tutti_comm *comm, const struct operation *op, bool is_read)
{
    struct tensor_access *access = &comm->tensor_access;
    size_t words = (size_t)mask_words(access->ranks);
    bool is_required = false, open = true, must_read = false;
    memset(access->shared, 0, words * sizeof *access->shared);
    memset(access->in_place, 0, words * sizeof *access->in_place);
    for (int peer = 0; peer < access->ranks; peer++) {
        uint64_t flags = tensors_get_declaration(comm, peer)->flags;
        is_required |= (flags & TENSOR_REQUIRED) != 0;
        open &= (flags & TENSOR_OPEN) != 0;
        must_read |= (flags & TENSOR_READING) != 0;
        if (flags & TENSOR_SHARED) mask_add(access->shared, peer);
        bool in_place = (!is_read && !(flags & TENSOR_SHARED)) || flags & TENSOR_IN_PLACE;
        if (in_place && op->collective != ALL_TO_ALL) mask_add(access->in_place, peer);
    }
    return (struct placement){ access->shared, access->in_place, is_required, open, must_read };
}

/* ---- addresses of peers' tensors ---- */
tutti_status tensor_map_address(tutti_comm *comm, int rank, int use, struct location at, size_t bytes,
    unsigned char **out)
{
    struct held_view *held = &comm->tensor_access.held[group_index_of_rank(&comm->group, rank)][use];
    if (!comm->group.peers[rank]) {
        *out = arena_location_address(at, bytes);
    } else {
        if (held->block != at.block) {
            view_release(held->view);
            *held = (struct held_view){ .block = at.block };
        }
        if (!held->mapped) {
            tutti_status status = view_acquire(comm->group.peers[rank], at.block, &held->view);
            if (status != TUTTI_OK) return status;
            held->mapped = true;
        }
        *out = view_address_at(held->view, at.offset, bytes);
    }
    if (*out) return TUTTI_OK;
    return status_fail(TUTTI_INVALID_ARGUMENT, "rank %d of %s has freed a shared tensor while an operation used it",
        rank, comm->group.name);
}
/* Finds the tensor of a rank of this host after the roll call, and stores it for the executor: the address here of a
   shared one, or the address in its own process of one that the kernel must read. */
static tutti_status tensors_find_operand(tutti_comm *comm, const struct operation *op, int rank, enum buffer buffer)
{
    struct executor *executor = &comm->executor;
    struct operand found = { .base = NULL };
    int index = group_index_of_rank(&comm->group, rank);
    const struct declaration *declaration = tensors_get_declaration(comm, index);
    if (op->uneven) {
        found.lengths = segment_counts(executor->site.segment, index, executor->run.parity, (int)buffer);
        found.offsets =
            segment_counts(executor->site.segment, index, executor->run.parity, COUNTS_OFFSETS + (int)buffer);
    }
    size_t bytes = tensor_bytes(op, rank, buffer, comm->group.size, found.lengths, found.offsets);
    if (bytes && !(declaration->flags & TENSOR_SHARED)) {
        found.base = (unsigned char *)(uintptr_t)declaration->tensor[buffer].offset;
        found.source = comm->group.peers[rank] ? &comm->tensor_access.sources[index] : NULL;
    } else if (bytes) {
        tutti_status status =
            tensor_map_address(comm, rank, (int)buffer, declaration->tensor[buffer], bytes, &found.base);
        if (status != TUTTI_OK) return status;
    }
    found.bytes = bytes;
    executor->peer_operands[index][buffer] = found;
    return TUTTI_OK;
}
tutti_status tensors_find_operands(tutti_comm *comm, const struct operation *op)
{
    const struct program *program = comm->executor.launch.program;
    if (program->touch_count) views_add_to_wait(&comm->executor.blocked);
    for (int i = 0; i < program->touch_count; i++) {
        tutti_status status = tensors_find_operand(comm, op, program->touches[i].rank, program->touches[i].buffer);
        if (status != TUTTI_OK) return status;
    }
    return TUTTI_OK;
}

/* ---- lifetime ---- */
tutti_status tensor_access_init(struct tensor_access *access, int ranks)
{
    access->ranks = ranks;
    access->held = memory_alloc_zeroed((size_t)ranks, sizeof *access->held);
    access->shared = memory_alloc_zeroed(2 * (size_t)mask_words(ranks), sizeof *access->shared);
    if (access->shared) access->in_place = access->shared + mask_words(ranks);
    if (access->held && access->shared) return TUTTI_OK;
    return status_fail(TUTTI_NO_MEMORY, "no memory for the tensors of %d peers", ranks);
}
void tensor_access_finish(struct tensor_access *access)
{
    for (int peer = 0; access->held && peer < access->ranks; peer++)
        for (int use = 0; use < HELD_COUNT; use++) view_release(access->held[peer][use].view);
    free(access->held);
    free(access->shared);
    free(access->sources);
    access->held = NULL;
}

/* ---- the end ---- */
bool tensors_poll_release(tutti_comm *comm)
{
    const struct group *group = &comm->group;
    for (int peer = 0; peer < comm->tensor_access.ranks; peer++) {
        int r = group_rank_at_index(group, peer);
        bool gone = r == group->rank || (group->peers[r] && peer_is_gone(group->peers[r]));
        const struct control *c = group_control_at_index(group, peer);
        if (gone || (!atomic_load(&c->touching) && !atomic_load(&c->copying))) continue;
        if (!comm->tensor_access.release_until_ms) comm->tensor_access.release_until_ms = clock_deadline(RELEASE_MS);
        if (clock_ms() < comm->tensor_access.release_until_ms) return false;
        if (comm->tensor_access.release_logged) continue;
        LOG(WARN,
            "%s: rank %d has not reported that it released the shared tensors of rank %d: it is stopped or too "
            "slow, and may still read or write them",
            group->name, r, group->rank);
    }
    comm->tensor_access.release_logged |=
        comm->tensor_access.release_until_ms && clock_ms() >= comm->tensor_access.release_until_ms;
    return true;
}
