/* Finds where a chunk's tile lies in the running operation, and does the arithmetic on it. Part of the executor. */
#pragma once
#include "backend/execute/execute.h"

/* Binds the buffers of launch to the program, cuts the message into tiles unless program.cut still fits, and chooses
   the slots. With uneven counts the caller cuts again. */
void bind_launch_operands(struct executor *executor);
/* Binds the buffers of launch to a program whose cut and addresses stay as they are. */
void bind_repeated_call(struct executor *executor);
/* Computes program.cut: the tiles and slots for chunks of at most chunk_bytes on any rank. */
void bind_cut_message(struct executor *executor, size_t chunk_bytes);
/* Returns the memory of chunk `index` of `span`, one of the program's spans, in a tile. */
struct piece bind_locate_chunk(const struct executor *executor, const struct span *span, int index, int tile);
/* Performs a work step in a tile. False: a peer's tensor could not be read (fetch.h). */
bool bind_compute_step(struct executor *executor, const struct step *step, int tile);
/* Computes to[0] = to[1] = … = from[0] + from[1] + … for one piece of each. */
void bind_compute_piece(const struct executor *executor, const struct step *step, void *const *to,
    const void *const *from, const struct part *part);
/* Performs a work step of a program that has_addresses. */
void bind_compute_recorded_step(const struct executor *executor, int step);
