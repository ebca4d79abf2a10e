/* What a target takes from the bytes that the fuzzer gives it, one thing after another. Behind their end are zeros,
   so a target has no case for an input that is too short. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct input { const uint8_t *at; size_t left; };

/* Returns how many of the bytes were there. */
static inline size_t input_take(struct input *in, void *out, size_t bytes)
{
    size_t there = bytes < in->left ? bytes : in->left;
    if (there) memcpy(out, in->at, there);
    if (bytes > there) memset((unsigned char *)out + there, 0, bytes - there);
    in->at += there;
    in->left -= there;
    return there;
}
static inline uint8_t input_byte(struct input *in)
{
    uint8_t byte;
    input_take(in, &byte, sizeof byte);
    return byte;
}
static inline uint64_t input_number(struct input *in)
{
    uint64_t number;
    input_take(in, &number, sizeof number);
    return number;
}
/* All that is left, up to a zero, as a text. */
static inline void input_text(struct input *in, char *out, size_t room)
{
    out[input_take(in, out, room - 1)] = 0;
    out[room - 1] = 0;
}
/* A target's own check of what it was given: a failure is a finding, as a crash is. */
#define FUZZ_CHECK(expression) do { if (!(expression)) __builtin_trap(); } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *count, char ***arguments);
