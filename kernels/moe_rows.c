/* Rows moved by an index: the permutation of a dispatch. Nothing but memory traffic, so the measure
 * is a plain copy of as many bytes.
 *
 * A copy that the caches cannot hold is written past them, as the C library's own memcpy does for
 * one long run: a plain store would first read the line that it is about to replace, a third more
 * traffic. Row by row memcpy cannot know how long the whole is. */
#include "kernels/launch.h"
#include "kernels/moe.h"
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Half of a common last-level cache slice of one core and more: below, what is written is likely to
 * be read again while it is still there. */
#define STREAMED_FROM_BYTES (INT64_C(8) << 20)

enum { LINE_BYTES = 64 };

/* One launch: row i goes from `from` to `to`, one of the two found by the index. */
struct move {
    char *to;
    const char *from;
    const int32_t *index;
    int64_t count, row_bytes;
    bool scatter, streamed;
};

static void copy_row(char *to, const char *from, int64_t bytes)
{
    memcpy(to, from, (size_t)bytes);
}

#ifdef __SSE2__
static void stream_row(char *to, const char *from, int64_t bytes)
{
    int64_t head = (int64_t)(-(uintptr_t)to % LINE_BYTES);
    if (bytes < head + LINE_BYTES) {
        copy_row(to, from, bytes);
        return;
    }
    copy_row(to, from, head);
    int64_t at = head;
    for (; at + LINE_BYTES <= bytes; at += LINE_BYTES) {
        const __m128i *line = (const void *)(from + at);
        __m128i a = _mm_loadu_si128(line), b = _mm_loadu_si128(line + 1);
        __m128i c = _mm_loadu_si128(line + 2), d = _mm_loadu_si128(line + 3);
        __m128i *out = (void *)(to + at);
        _mm_stream_si128(out, a);
        _mm_stream_si128(out + 1, b);
        _mm_stream_si128(out + 2, c);
        _mm_stream_si128(out + 3, d);
    }
    copy_row(to + at, from + at, bytes - at);
}

/* Before another thread is told that the rows are there. */
static void finish_streams(void)
{
    _mm_sfence();
}
#else
static void stream_row(char *to, const char *from, int64_t bytes)
{
    copy_row(to, from, bytes);
}

static void finish_streams(void)
{
}
#endif

/* Rows of one FP32 or int32: a value per route. */
static void move_words(const struct move *m, int64_t begin, int64_t end)
{
    uint32_t *to = (uint32_t *)m->to;
    const uint32_t *from = (const uint32_t *)m->from;
    if (m->scatter)
        for (int64_t i = begin; i < end; i++)
            to[m->index[i]] = from[i];
    else
        for (int64_t i = begin; i < end; i++)
            to[i] = from[m->index[i]];
}

static void move_part(void *context, int index, int parts)
{
    const struct move *m = context;
    struct item_range rows = item_range(m->count, index, parts);
    if (m->row_bytes == sizeof(uint32_t)) {
        move_words(m, rows.begin, rows.end);
        return;
    }
    for (int64_t i = rows.begin; i < rows.end; i++) {
        int64_t other = m->index[i];
        char *to = m->to + (m->scatter ? other : i) * m->row_bytes;
        const char *from = m->from + (m->scatter ? i : other) * m->row_bytes;
        if (m->streamed)
            stream_row(to, from, m->row_bytes);
        else
            copy_row(to, from, m->row_bytes);
    }
    if (m->streamed)
        finish_streams();
}

static void move_rows(struct move *m, const struct dev_team *team)
{
    m->streamed = m->row_bytes >= 4 * LINE_BYTES && m->count * m->row_bytes >= STREAMED_FROM_BYTES;
    int64_t row_words = m->row_bytes / (int64_t)sizeof(uint32_t) + 1;
    team_run(team, item_parts(team, m->count, row_words), move_part, m);
}

static double moved_bytes(int64_t count, int64_t row_bytes)
{
    return (double)count * (2.0 * (double)row_bytes + sizeof(int32_t));
}

static int64_t index_bytes(int64_t count)
{
    return count * (int64_t)sizeof(int32_t);
}

/* ---- gather ------------------------------------------------------------------------------- */

static void gather_cpu(const void *launched, const struct dev_team *team)
{
    const struct gather_rows_args *args = launched;
    struct move m = {.to = args->to,
        .from = args->from,
        .index = args->index,
        .count = args->count,
        .row_bytes = args->row_bytes};
    move_rows(&m, team);
}

static void gather_cost(const void *launched, struct kernel_cost *cost)
{
    const struct gather_rows_args *args = launched;
    *cost = (struct kernel_cost){
        .bytes = moved_bytes(args->count, args->row_bytes), .rate = DEV_RATE_F32};
}

static int gather_access(const void *launched, struct dev_access *ranges)
{
    const struct gather_rows_args *args = launched;
    if (args->count <= 0)
        return 0;
    int count = add_access(ranges, 0, args->from, args->from_rows * args->row_bytes, false);
    count = add_access(ranges, count, args->index, index_bytes(args->count), false);
    return add_access(ranges, count, args->to, args->count * args->row_bytes, true);
}

const struct kernel kernel_gather_rows = {
    .name = "gather_rows",
    .cpu = gather_cpu,
    .cost = gather_cost,
    .access = gather_access,
};

void gather_rows(struct stream *stream, const struct gather_rows_args *args)
{
    dev_launch(stream, &kernel_gather_rows, args, sizeof *args);
}

/* ---- scatter ------------------------------------------------------------------------------ */

static void scatter_cpu(const void *launched, const struct dev_team *team)
{
    const struct scatter_rows_args *args = launched;
    struct move m = {.to = args->to,
        .from = args->from,
        .index = args->index,
        .count = args->count,
        .row_bytes = args->row_bytes,
        .scatter = true};
    move_rows(&m, team);
}

static void scatter_cost(const void *launched, struct kernel_cost *cost)
{
    const struct scatter_rows_args *args = launched;
    *cost = (struct kernel_cost){
        .bytes = moved_bytes(args->count, args->row_bytes), .rate = DEV_RATE_F32};
}

static int scatter_access(const void *launched, struct dev_access *ranges)
{
    const struct scatter_rows_args *args = launched;
    if (args->count <= 0)
        return 0;
    int count = add_access(ranges, 0, args->from, args->count * args->row_bytes, false);
    count = add_access(ranges, count, args->index, index_bytes(args->count), false);
    return add_access(ranges, count, args->to, args->to_rows * args->row_bytes, true);
}

const struct kernel kernel_scatter_rows = {
    .name = "scatter_rows",
    .cpu = scatter_cpu,
    .cost = scatter_cost,
    .access = scatter_access,
};

void scatter_rows(struct stream *stream, const struct scatter_rows_args *args)
{
    dev_launch(stream, &kernel_scatter_rows, args, sizeof *args);
}
