/* Enqueues waits, writes, copies and kernels on a stream. Waits, writes and small copies that follow each other are
 * gathered, so that they take one call of the driver. The order that other ranks can observe stays that of the calls
 * here. */
#pragma once
#include "backend/streams/site.h"
#include "kernels/cuda/launch.h"

/* COMMANDS_WORDS: the most words of a call. A copy of COPY_LARGE bytes or more is the driver's own. COPY_SOON: if
   gathered copies have this many bytes, they are launched before the next wait. */
enum { COMMANDS_WORDS = 256, COPY_LARGE = 256 << 10, COPY_SOON = 64 << 10 };
/* The words come first, then the copies, then the late writes. */
struct stream_commands {
    struct stream_site *site;
    CUstream stream;
    /* The first error; after it, calls have no effect. */
    tutti_status status;
    int word_count, copy_count;
    /* The calls that have enqueued work. */
    unsigned calls;
    /* Words from this one on are waits. */
    int first_wait;
    /* Writes of this rank's words after the copies, and which words these are. */
    uint32_t late_value[STREAM_WORDS];
    bool is_late[STREAM_WORDS], has_late;
    size_t copy_bytes;
    CUstreamBatchMemOpParams words[COMMANDS_WORDS];
    struct stream_copy copies[CUDA_COPIES];
};
/* Begins commands for a stream. */
void stream_commands_begin(struct stream_commands *commands, struct stream_site *site, CUstream stream);
/* Makes the stream wait until a word of a rank has reached `value`. */
void stream_commands_await_word(struct stream_commands *commands, int rank, int word, uint32_t value);
/* Makes the stream write a word of this rank after all commands before. */
void stream_commands_write_word(struct stream_commands *commands, int word, uint32_t value);
void stream_commands_copy_bytes(struct stream_commands *commands, CUdeviceptr to, CUdeviceptr from, size_t bytes);
void stream_commands_reduce(struct stream_commands *commands, const struct stream_reduce *reduce);
void stream_commands_scale(struct stream_commands *commands, const struct stream_scale *scale);
/* Writes WORD_DONE by one call, after a failed call, and drops what is gathered. `awaits`: waits for the operation
   before, which is on another stream. Returns false if the driver refuses. */
bool stream_commands_end_failed_operation(struct stream_commands *commands, uint32_t number, bool awaits);
/* Enqueues all that is gathered. Returns the first error of all calls. */
tutti_status stream_commands_finish(struct stream_commands *commands);
