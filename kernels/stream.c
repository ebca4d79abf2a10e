/* Copies by non-temporal stores. A fence follows, because they are not ordered with ordinary stores. */
#include "kernels/stream.h"
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

enum { LINE = 64 };

/* Copies whole cache lines of `to` by stores around the cache, and the bytes before and after them by memcpy. */
__attribute__((target("avx2"))) static void stream_copy_avx2(void *to, const void *from, size_t bytes)
{
    char *out = to;
    const char *in = from;
    size_t head = (LINE - (uintptr_t)out % LINE) % LINE;
    if (head > bytes) head = bytes;
    memcpy(out, in, head);
    size_t at = head;
    for (; at + LINE <= bytes; at += LINE) {
        __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)(in + at));
        __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(in + at + 32));
        _mm256_stream_si256((__m256i *)(void *)(out + at), low);
        _mm256_stream_si256((__m256i *)(void *)(out + at + 32), high);
    }
    memcpy(out + at, in + at, bytes - at);
    _mm_sfence();
}
stream_function *stream_find(void) { return __builtin_cpu_supports("avx2") ? stream_copy_avx2 : NULL; }
#else
stream_function *stream_find(void) { return NULL; }
#endif
