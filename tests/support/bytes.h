/* Fills memory with bytes that depend on a number and on their place, and compares it with them. The bytes come from
 * rows of 256 that memcpy and memcmp handle, because the sanitizer of threads looks at every single access of a loop
 * but only once at a call. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { ROW_BYTES = 256 };
#define BYTE(i) (unsigned char)((i) * 7)
#define BYTES_8(i) BYTE(i), BYTE((i) + 1), BYTE((i) + 2), BYTE((i) + 3), BYTE((i) + 4), BYTE((i) + 5), BYTE((i) + 6), \
    BYTE((i) + 7)
#define BYTES_64(i) BYTES_8(i), BYTES_8((i) + 8), BYTES_8((i) + 16), BYTES_8((i) + 24), BYTES_8((i) + 32), \
    BYTES_8((i) + 40), BYTES_8((i) + 48), BYTES_8((i) + 56)
#define BYTES_256(i) BYTES_64(i), BYTES_64((i) + 64), BYTES_64((i) + 128), BYTES_64((i) + 192)
static const unsigned char bytes_of_two_rows[2 * ROW_BYTES] = { BYTES_256(0), BYTES_256(256) };

/* Returns the row for the bytes from that place on. Rows differ by where they begin in the table. */
static inline const unsigned char *bytes_row(uint64_t number, size_t place)
{
    return bytes_of_two_rows + (number * 31 + (place / ROW_BYTES) * 13 + (place >> 16)) % ROW_BYTES;
}
static inline size_t bytes_in_row(size_t place, size_t bytes)
{
    return bytes - place < ROW_BYTES ? bytes - place : ROW_BYTES;
}
static inline void bytes_fill(unsigned char *at, size_t bytes, uint64_t number)
{
    for (size_t i = 0; i < bytes; i += ROW_BYTES) memcpy(at + i, bytes_row(number, i), bytes_in_row(i, bytes));
}
static inline bool bytes_are(const unsigned char *at, size_t bytes, uint64_t number)
{
    size_t i = 0;
    while (i < bytes && !memcmp(at + i, bytes_row(number, i), bytes_in_row(i, bytes))) i += ROW_BYTES;
    return i >= bytes;
}
