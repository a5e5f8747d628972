/* Copies that go past the caches, for results that the caches cannot hold.
 *
 * A plain store first reads the line that it is about to replace, a third more traffic for a copy.
 * The C library's memcpy avoids that for one long run; row by row it cannot know how long the whole
 * is. */
#pragma once
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Results of so many bytes are streamed: below, what is written is likely to be read again while it
 * is still in some cache. */
#define STREAM_FROM_BYTES (INT64_C(8) << 20)

#define CACHE_LINE_BYTES 64

#ifdef __SSE2__

/* Whole lines of `to` bypass the caches, its ends do not. stream_finish() before another thread is
 * told. */
static inline void stream_copy(void *to, const void *from, int64_t bytes)
{
    int64_t at = (int64_t)(-(uintptr_t)to % CACHE_LINE_BYTES);
    if (bytes < at + CACHE_LINE_BYTES) {
        memcpy(to, from, (size_t)bytes);
        return;
    }
    if (at)
        memcpy(to, from, (size_t)at);
    for (; at + CACHE_LINE_BYTES <= bytes; at += CACHE_LINE_BYTES) {
        const __m128i *line = (const void *)((const char *)from + at);
        __m128i a = _mm_loadu_si128(line), b = _mm_loadu_si128(line + 1);
        __m128i c = _mm_loadu_si128(line + 2), d = _mm_loadu_si128(line + 3);
        __m128i *out = (void *)((char *)to + at);
        _mm_stream_si128(out, a);
        _mm_stream_si128(out + 1, b);
        _mm_stream_si128(out + 2, c);
        _mm_stream_si128(out + 3, d);
    }
    if (at < bytes)
        memcpy((char *)to + at, (const char *)from + at, (size_t)(bytes - at));
}

static inline void stream_finish(void)
{
    _mm_sfence();
}

#else

static inline void stream_copy(void *to, const void *from, int64_t bytes)
{
    memcpy(to, from, (size_t)bytes);
}

static inline void stream_finish(void)
{
}

#endif

/* Asks for `bytes` from `from` on, which will be read soon: into the second level, which has room
 * for many more lines under way than the first. */
static inline void prefetch_bytes(const void *from, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += CACHE_LINE_BYTES)
        __builtin_prefetch((const char *)from + at, 0, 2);
}
