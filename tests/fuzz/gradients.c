/* Fuzzes gradients that other ranks have packed: bytes of any content, in memory of exactly their size. */
#define INLINE static inline __attribute__((unused))
#include "kernels/cpu/update.h"

#include "kernels/cpu/compress.h"
#include "tests/fuzz/input.h"
#include <stdlib.h>

enum { MOST_COUNT = 3000, SOURCES = 2 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static float to[MOST_COUNT];
    struct input in = { data, size };
    struct packing how = { .form = input_byte(&in) % PACKING_FORMS, .threshold = 1 };
    how.kept = 1 + (input_byte(&in) << 2 | input_byte(&in) % 4);
    how.seed = input_byte(&in);
    size_t count = 1 + ((size_t)input_byte(&in) << 8 | input_byte(&in)) % MOST_COUNT;
    bool wide = input_byte(&in) % 2;
    size_t bytes = packing_bytes(&how, count);
    void *packed[SOURCES];
    for (int s = 0; s < SOURCES; s++) {
        packed[s] = malloc(bytes);
        input_take(&in, packed[s], bytes);
    }
    bool sound = packing_is_valid(&how, packed[0], bytes, count);
    if (how.form != PACKING_TOPK && how.form != PACKING_THRESHOLD) FUZZ_CHECK(sound);
    packing_is_valid(&how, packed[1], bytes - bytes / 2 * (size % 2), count);
    array_unpack_groups(to, (const void *const *)packed, SOURCES, count, &how, 0, 1.0f, wide);
    for (int s = 0; s < SOURCES; s++) free(packed[s]);
    return 0;
}
