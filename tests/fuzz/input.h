/* The bytes that the fuzzer gives a target, which takes them one after another. Behind their end are zeros, so a target
   has no case for an input that is too short. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct input { const uint8_t *at; size_t left; };

/* Takes the next `bytes` bytes into `out`. Returns how many of them came from the input; the others are 0. */
static inline size_t input_take(struct input *in, void *out, size_t bytes)
{
    size_t available = bytes < in->left ? bytes : in->left;
    if (available) memcpy(out, in->at, available);
    if (bytes > available) memset((unsigned char *)out + available, 0, bytes - available);
    in->at += available;
    in->left -= available;
    return available;
}
/* Takes one byte. */
static inline uint8_t input_byte(struct input *in)
{
    uint8_t byte;
    input_take(in, &byte, sizeof byte);
    return byte;
}
/* Takes a number of 8 bytes. */
static inline uint64_t input_number(struct input *in)
{
    uint64_t number;
    input_take(in, &number, sizeof number);
    return number;
}
/* Takes up to bytes - 1 bytes of the input as a text, and ends it with a zero. */
static inline void input_text(struct input *in, char *out, size_t bytes)
{
    out[input_take(in, out, bytes - 1)] = 0;
    out[bytes - 1] = 0;
}
/* Checks a result of the tested code. A failure is a finding, like a crash. */
#define FUZZ_CHECK(expression) do { if (!(expression)) __builtin_trap(); } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *count, char ***arguments);
