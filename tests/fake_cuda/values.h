/* Words that streams write and wait for, of 32 or 64 bits. */
#pragma once
#include "tests/fake_cuda/streams.h"

struct word_access {
    /* Where the fake accesses the word. */
    void *shadow;
    struct location location;
    uint64_t value;
    unsigned width, compare;
    bool writes, is_host;
};
/* Sets the place of a word in *out, or fails if the device cannot access it. */
CUresult word_find(CUdeviceptr address, unsigned width, struct word_access *out);
/* Writes the word, after all that the stream has done; or waits for it, and then the stream has seen what its writer
   had seen. On the stream's thread. */
void word_write(CUstream stream, const struct word_access *word);
void word_await(CUstream stream, const struct word_access *word);
