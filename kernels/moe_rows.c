/* Rows moved by an index: the permutation of a dispatch. Nothing but memory traffic, so the measure
 * is a plain copy of as many bytes. Two things a plain copy has and rows do not: stores past the
 * caches (stream_copy.h), and a source that the processor can foresee. The index tells which rows
 * come next, so they are asked for ahead. */
#include "kernels/launch.h"
#include "kernels/moe.h"
#include "kernels/stream_copy.h"

/* Rows are copied in pieces, and pieces are asked for that many ahead: more would not fit into the
 * lines that a core can have under way, fewer would not hide the memory's latency. */
enum { PIECE_BYTES = 1024, PIECES_AHEAD = 8 };

/* One launch: row i goes from `from` to `to`, one of the two found by the index. */
struct move {
    char *to;
    const char *from;
    const int32_t *index;
    int64_t count, row_bytes;
    bool scatter, streamed;
};

/* Rows of four bytes: an FP32 or int32 per route. Two BF16 may begin at any even address. */
static void move_words(const struct move *m, int64_t begin, int64_t end)
{
    const int64_t word_bytes = sizeof(uint32_t);
    if (m->scatter)
        for (int64_t i = begin; i < end; i++)
            memcpy(m->to + m->index[i] * word_bytes, m->from + i * word_bytes, word_bytes);
    else
        for (int64_t i = begin; i < end; i++)
            memcpy(m->to + i * word_bytes, m->from + m->index[i] * word_bytes, word_bytes);
}

/* A piece of the rows taken one after the other. */
struct piece {
    int64_t row, at;
};

static struct piece next_piece(struct piece piece, int64_t row_bytes)
{
    piece.at += PIECE_BYTES;
    return piece.at < row_bytes ? piece : (struct piece){piece.row + 1, 0};
}

static int64_t piece_bytes(const struct move *m, struct piece piece)
{
    int64_t left = m->row_bytes - piece.at;
    return left < PIECE_BYTES ? left : PIECE_BYTES;
}

static const char *source(const struct move *m, struct piece piece)
{
    return m->from + (m->scatter ? piece.row : m->index[piece.row]) * m->row_bytes + piece.at;
}

static void copy_pieces(const struct move *m, int64_t begin, int64_t end)
{
    struct piece piece = {begin, 0}, ahead = {begin, 0};
    for (int i = 0; i < PIECES_AHEAD; i++)
        ahead = next_piece(ahead, m->row_bytes);
    for (; piece.row < end; piece = next_piece(piece, m->row_bytes)) {
        if (!m->scatter && ahead.row < end)
            prefetch_bytes(source(m, ahead), piece_bytes(m, ahead));
        ahead = next_piece(ahead, m->row_bytes);
        int64_t row = m->scatter ? m->index[piece.row] : piece.row;
        char *to = m->to + row * m->row_bytes + piece.at;
        if (m->streamed)
            stream_copy(to, source(m, piece), piece_bytes(m, piece));
        else
            memcpy(to, source(m, piece), (size_t)piece_bytes(m, piece));
    }
}

static void move_part(void *context, int index, int parts)
{
    const struct move *m = context;
    struct item_range rows = item_range(m->count, index, parts);
    if (m->row_bytes == sizeof(uint32_t)) {
        move_words(m, rows.begin, rows.end);
        return;
    }
    copy_pieces(m, rows.begin, rows.end);
    if (m->streamed)
        stream_finish();
}

static void move_rows(struct move *m, const struct dev_team *team)
{
    m->streamed =
        m->row_bytes >= 4 * CACHE_LINE_BYTES && m->count * m->row_bytes >= STREAM_FROM_BYTES;
    if (m->row_bytes <= 0)
        return;
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

int gather_rows_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_gather_rows = {
    .name = "gather_rows",
    .cpu = gather_cpu,
    .cuda = gather_rows_cuda,
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

int scatter_rows_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_scatter_rows = {
    .name = "scatter_rows",
    .cpu = scatter_cpu,
    .cuda = scatter_rows_cuda,
    .cost = scatter_cost,
    .access = scatter_access,
};

void scatter_rows(struct stream *stream, const struct scatter_rows_args *args)
{
    dev_launch(stream, &kernel_scatter_rows, args, sizeof *args);
}
