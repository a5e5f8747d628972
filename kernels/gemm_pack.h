/* Packing: a panel is `width` rows of A (or columns of B) by `depth` steps of k, stored step by
 * step, so that a tile reads it straight through. Packing also widens BF16 and pads with +0. */
#pragma once

/* One operand. Its lines are rows of A or columns of B, its steps run along k. A stored row holds
 * one step of every line where the steps are stored apart, else one whole line. */
struct operand {
    const void *data;
    int64_t ld; /* elements between stored rows */
    bool bf16;
    bool steps_stored_apart;
};

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* How far ahead of a transposing pack the stored rows are fetched, and how many panels a copying
 * pack writes side by side. */
enum { PACK_AHEAD_BYTES = 256, PANELS_ABREAST = 4 };

ALWAYS_INLINE const void *element(const struct operand *from, int64_t row, int64_t column)
{
    int64_t index = row * from->ld + column;
    return from->bf16 ? (const void *)((const uint16_t *)from->data + index)
                      : (const void *)((const float *)from->data + index);
}

/* Where one line begins. */
ALWAYS_INLINE const void *line_of(const struct operand *from, int64_t line)
{
    return from->steps_stored_apart ? element(from, 0, line) : element(from, line, 0);
}

ALWAYS_INLINE int64_t element_bytes_of(const struct operand *from)
{
    return from->bf16 ? 2 : 4;
}

ALWAYS_INLINE vec load(const void *from, const bool bf16)
{
    return bf16 ? vec_load_bf16((const uint16_t *)from) : vec_load((const float *)from);
}

ALWAYS_INLINE vec load_first(const void *from, int count, const bool bf16)
{
    return bf16 ? vec_load_bf16_first((const uint16_t *)from, count)
                : vec_load_first((const float *)from, count);
}

ALWAYS_INLINE int at_most(int64_t count, int limit)
{
    return count < 0 ? 0 : count < limit ? (int)count : limit;
}

/* Stores the first `count` lanes of one step of a panel. A whole vector is stored where its further
 * lanes stay before `end`: the panel's next step, written later, covers them. (A masked store is
 * slow on some CPUs.) */
ALWAYS_INLINE void store_step(float *to, int count, const float *end, vec value)
{
    if (count == LANES || end - to >= LANES)
        vec_store(to, value);
    else
        vec_store_first(to, count, value);
}

/* One step of one panel, copied; `lines` of its `width` lines exist. */
ALWAYS_INLINE void pack_step(
    const int width, const bool bf16, const char *from, int64_t lines, float *to, const float *end)
{
    UNROLLED
    for (int i = 0; i < width; i += LANES) {
        const int room = width - i < LANES ? width - i : LANES;
        const char *at = from + i * (bf16 ? 2 : 4);
        if (lines - i >= LANES)
            store_step(to + i, room, end, load(at, bf16));
        else
            store_step(to + i, room, end, load_first(at, at_most(lines - i, room), bf16));
    }
}

/* Stored rows are steps of k. A few panels are packed side by side, so that a stored row is read
 * some cache lines at a time: rows a multiple of a page apart evict each other before the next
 * panel could use the rest of a line. */
ALWAYS_INLINE void pack_steps(const int width, const bool bf16, const void *data, int64_t ld,
    int64_t lines, int64_t depth, float *to)
{
    const int64_t step_bytes = ld * (bf16 ? 2 : 4), panel_bytes = width * (bf16 ? 2 : 4);
    const int64_t panel_floats = width * depth;
    while (lines > 0) {
        const int64_t panels = at_most((lines + width - 1) / width, PANELS_ABREAST);
        const bool whole = panels == PANELS_ABREAST && lines >= PANELS_ABREAST * width + LANES;
        const char *from = data;
        for (int64_t k = 0; k < depth; k++, from += step_bytes) {
            float *step = to + k * width;
            if (whole) {
                UNROLLED
                for (int p = 0; p < PANELS_ABREAST; p++, step += panel_floats)
                    pack_step(width, bf16, from + p * panel_bytes, INT64_MAX, step,
                        to + (p + 1) * panel_floats);
            } else {
                for (int p = 0; p < panels; p++, step += panel_floats)
                    pack_step(width, bf16, from + p * panel_bytes, lines - p * width, step,
                        to + (p + 1) * panel_floats);
            }
        }
        data = (const char *)data + panels * panel_bytes;
        to += panels * panel_floats;
        lines -= panels * width;
    }
}

/* LANES lines by LANES steps become LANES steps of the panel. */
ALWAYS_INLINE void pack_block(const int room, const bool bf16, const char *from, int64_t line_bytes,
    const int width, float *to, const float *end)
{
    vec block[LANES];
    UNROLLED
    for (int i = 0; i < LANES; i++, from += line_bytes) {
        block[i] = i < room ? load(from, bf16) : vec_zero();
        __builtin_prefetch(from + PACK_AHEAD_BYTES);
    }
    vec_transpose(block);
    UNROLLED
    for (int i = 0; i < LANES; i++)
        store_step(to + i * width, room, end, block[i]);
}

/* The same at the operand's edges: `lines` of LANES lines, `steps` of LANES steps. */
ALWAYS_INLINE void pack_edge_block(const int room, const bool bf16, const char *from,
    int64_t line_bytes, int lines, int steps, const int width, float *to, const float *end)
{
    vec block[LANES];
    for (int i = 0; i < LANES; i++)
        block[i] = i < lines ? load_first(from + i * line_bytes, steps, bf16) : vec_zero();
    vec_transpose(block);
    for (int i = 0; i < steps; i++)
        store_step(to + i * width, room, end, block[i]);
}

/* Stored rows are lines: turn them. One panel. */
ALWAYS_INLINE void pack_lines_panel(const int width, const bool bf16, const void *data, int64_t ld,
    int64_t lines, int64_t depth, float *to)
{
    const int element_bytes = bf16 ? 2 : 4;
    const int64_t line_bytes = ld * element_bytes;
    const float *end = to + width * depth;
    for (int line = 0; line < width; line += LANES) {
        const int room = width - line < LANES ? width - line : LANES;
        const int filled = at_most(lines - line, room);
        for (int64_t k = 0; k < depth; k += LANES) {
            const char *from = (const char *)data + line * line_bytes + k * element_bytes;
            const int steps = at_most(depth - k, LANES);
            float *out = to + k * width + line;
            if (filled == room && steps == LANES)
                pack_block(room, bf16, from, line_bytes, width, out, end);
            else
                pack_edge_block(room, bf16, from, line_bytes, filled, steps, width, out, end);
        }
    }
}

ALWAYS_INLINE void pack_lines(const int width, const bool bf16, const void *data, int64_t ld,
    int64_t lines, int64_t depth, float *to)
{
    for (; lines > 0; lines -= width, to += width * depth) {
        pack_lines_panel(width, bf16, data, ld, lines, depth, to);
        data = (const char *)data + width * ld * (bf16 ? 2 : 4);
    }
}

/* Packs lines [line, line+lines) of steps [k, k+depth) into panels of `width` lines, the last one
 * padded, `width` * `depth` floats apart. */
ALWAYS_INLINE void pack(const int width, const struct operand *from, int64_t line, int64_t lines,
    int64_t k, int64_t depth, float *to)
{
    if (from->steps_stored_apart) {
        const void *data = element(from, k, line);
        if (from->bf16)
            pack_steps(width, true, data, from->ld, lines, depth, to);
        else
            pack_steps(width, false, data, from->ld, lines, depth, to);
    } else {
        const void *data = element(from, line, k);
        if (from->bf16)
            pack_lines(width, true, data, from->ld, lines, depth, to);
        else
            pack_lines(width, false, data, from->ld, lines, depth, to);
    }
}
