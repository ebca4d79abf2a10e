/* Finds where a chunk's tile lies in the running operation, and does the arithmetic on it. Part of the executor. */
#pragma once
#include "backend/execute/execute.h"

/* Binds the buffers of launch, and cuts the message into tiles unless counts are uneven. */
void bind_launch_operands(struct executor *executor);
/* Binds the buffers of launch to a program whose cut and addresses stay as they are. */
void bind_repeated_call(struct executor *executor);
/* `chunk_bytes` is the size of the largest chunk of any rank. */
void bind_cut_message(struct executor *executor, size_t chunk_bytes);
/* Returns where chunk `index` of `span`, one of the program's spans, lies in this tile. */
struct piece bind_locate_chunk(const struct executor *executor, const struct span *span, int index, int tile);
/* Performs a step of arithmetic. False: a peer's tensor could not be read (fetch.h). */
bool bind_compute_step(struct executor *executor, const struct step *step, int tile);
/* Computes to[0] = to[1] = … = from[0] + from[1] + … for one piece of each. */
void bind_compute_piece(const struct executor *executor, const struct step *step, void *const *to,
    const void *const *from, const struct part *part);
/* Performs a step of a program that is_fixed. */
void bind_compute_fixed_step(const struct executor *executor, int step);
