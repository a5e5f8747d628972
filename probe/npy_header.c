/* The header is a Python dictionary of three keys in ASCII: 'descr', 'fortran_order', 'shape'. The
 * grammar accepted is exactly that, with keys in any order, either quote and any white space; a
 * cursor that never passes the end reads it, so that no byte of a hostile file is trusted. */
#include "probe/npy_header.h"
#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define MAGIC "\x93NUMPY"
enum { MAGIC_BYTES = 6, ALIGNMENT = 64 };

static const struct {
    const char *descr, *name;
    int bytes;
} types[] = {
    [NPY_F32] = {"<f4", "float32", 4},
    [NPY_F64] = {"<f8", "float64", 8},
    [NPY_U16] = {"<u2", "uint16", 2},
    [NPY_I32] = {"<i4", "int32", 4},
    [NPY_I64] = {"<i8", "int64", 8},
    [NPY_U32] = {"<u4", "uint32", 4},
};
enum { TYPES = sizeof types / sizeof *types };

static const char allowed_types[] =
    "allowed are float32 '<f4', float64 '<f8', uint16 '<u2' (bfloat16 travels as such), "
    "int32 '<i4', int64 '<i8' and uint32 '<u4'";

int npy_type_bytes(enum npy_type type)
{
    return types[type].bytes;
}

const char *npy_type_name(enum npy_type type)
{
    return types[type].name;
}

struct cursor {
    const char *at, *end;
    char *error;
    int size;
};

__attribute__((format(printf, 2, 3))) static int fail(struct cursor *c, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(c->error, (size_t)c->size, format, args);
    va_end(args);
    return -1;
}

/* The next few bytes for a message, what cannot be printed as '?'. */
struct excerpt {
    char text[25];
};
static struct excerpt excerpt_of(const char *at, const char *end)
{
    struct excerpt out = {{0}};
    for (size_t i = 0; i + 1 < sizeof out.text && at + i < end; i++)
        out.text[i] = at[i] >= ' ' && at[i] <= '~' ? at[i] : '?';
    return out;
}

static int fail_at(struct cursor *c, const char *expected)
{
    if (c->at >= c->end)
        return fail(c, "header ends where %s is due", expected);
    return fail(c, "header has \"%s\" where %s is due", excerpt_of(c->at, c->end).text, expected);
}

static void skip_space(struct cursor *c)
{
    while (c->at < c->end && isspace((unsigned char)*c->at))
        c->at++;
}

/* Skips white space and then `wanted` if it stands there. */
static bool accept(struct cursor *c, char wanted)
{
    skip_space(c);
    if (c->at >= c->end || *c->at != wanted)
        return false;
    c->at++;
    return true;
}

/* A quoted string without escapes; *text points into the header. */
static int parse_string(struct cursor *c, const char **text, int64_t *length, const char *what)
{
    skip_space(c);
    if (c->at >= c->end || (*c->at != '\'' && *c->at != '"'))
        return fail_at(c, what);
    char quote = *c->at++;
    *text = c->at;
    while (c->at < c->end && *c->at != quote && *c->at != '\\')
        c->at++;
    *length = c->at - *text;
    if (c->at >= c->end || *c->at != quote)
        return fail_at(c, "a closing quote");
    c->at++;
    return 0;
}

static bool equals(const char *text, int64_t length, const char *word)
{
    return length == (int64_t)strlen(word) && !memcmp(text, word, (size_t)length);
}

static int parse_type(struct cursor *c, enum npy_type *type)
{
    const char *text;
    int64_t length;
    skip_space(c);
    if (c->at < c->end && *c->at == '[')
        return fail(c, "structured dtype; %s", allowed_types);
    if (parse_string(c, &text, &length, "the dtype, a string,"))
        return -1;
    for (int i = 0; i < TYPES; i++)
        if (equals(text, length, types[i].descr)) {
            *type = (enum npy_type)i;
            return 0;
        }
    const char *order = length && *text == '>' ? "big-endian " : "";
    return fail(c, "%sdtype '%s'; %s", order, excerpt_of(text, text + length).text, allowed_types);
}

static int parse_order(struct cursor *c)
{
    const char *word;
    skip_space(c);
    word = c->at;
    while (c->at < c->end && isalpha((unsigned char)*c->at))
        c->at++;
    if (equals(word, c->at - word, "False"))
        return 0;
    if (equals(word, c->at - word, "True"))
        return fail(c, "Fortran order; allowed is C order (numpy.ascontiguousarray makes it)");
    c->at = word;
    return fail_at(c, "True or False");
}

static int parse_extent(struct cursor *c, int64_t *extent)
{
    skip_space(c);
    if (c->at < c->end && *c->at == '-')
        return fail(c, "negative extent in the shape; allowed are 0 and more");
    if (c->at >= c->end || !isdigit((unsigned char)*c->at))
        return fail_at(c, "an extent or ')'");
    for (*extent = 0; c->at < c->end && isdigit((unsigned char)*c->at); c->at++)
        if (__builtin_mul_overflow(*extent, 10, extent) ||
            __builtin_add_overflow(*extent, *c->at - '0', extent))
            return fail(c, "an extent of the shape passes 2^63 - 1");
    return 0;
}

static int parse_shape(struct cursor *c, struct npy_array *out)
{
    bool comma = false;
    if (!accept(c, '('))
        return fail_at(c, "the shape, a tuple in parentheses,");
    out->dims = 0;
    while (!accept(c, ')')) {
        if (out->dims && !comma)
            return fail_at(c, "',' or ')'");
        if (out->dims == NPY_MAX_DIMS)
            return fail(
                c, "more than %d dimensions; allowed are 0 to %d", NPY_MAX_DIMS, NPY_MAX_DIMS);
        if (parse_extent(c, &out->shape[out->dims]))
            return -1;
        out->dims++;
        comma = accept(c, ',');
    }
    /* Python reads (3) as a number. */
    if (out->dims == 1 && !comma)
        return fail(c, "shape (%" PRId64 ") is a number; a tuple of one is (%" PRId64 ",)",
            out->shape[0], out->shape[0]);
    return 0;
}

static int parse_dictionary(struct cursor *c, struct npy_array *out)
{
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    enum { KEYS = sizeof keys / sizeof *keys };
    bool met[KEYS] = {false};
    if (!accept(c, '{'))
        return fail_at(c, "'{'");
    while (!accept(c, '}')) {
        const char *text;
        int64_t length;
        int key = 0;
        if (parse_string(c, &text, &length, "a key or '}'"))
            return -1;
        while (key < KEYS && !equals(text, length, keys[key]))
            key++;
        if (key == KEYS)
            return fail(c,
                "unknown key '%s' in the header; allowed are descr, fortran_order, shape",
                excerpt_of(text, text + length).text);
        if (met[key])
            return fail(c, "key '%s' stands twice in the header", keys[key]);
        met[key] = true;
        if (!accept(c, ':'))
            return fail_at(c, "':'");
        int failed = key == 0   ? parse_type(c, &out->type)
                     : key == 1 ? parse_order(c)
                                : parse_shape(c, out);
        if (failed)
            return -1;
        if (!accept(c, ',')) {
            if (!accept(c, '}'))
                return fail_at(c, "',' or '}'");
            break;
        }
    }
    for (int key = 0; key < KEYS; key++)
        if (!met[key])
            return fail(c, "key '%s' is missing from the header", keys[key]);
    skip_space(c);
    return c->at < c->end ? fail_at(c, "the end of the header") : 0;
}

int npy_shape_count(
    enum npy_type type, int dims, const int64_t *shape, int64_t *count, int64_t *bytes)
{
    bool empty = false;
    *count = 1;
    for (int i = 0; i < dims; i++) {
        if (shape[i] < 0)
            return -1;
        if (shape[i] == 0)
            empty = true;
        else if (__builtin_mul_overflow(*count, shape[i], count))
            return -1;
    }
    if (__builtin_mul_overflow(*count, (int64_t)npy_type_bytes(type), bytes))
        return -1;
    if (empty)
        *count = *bytes = 0;
    return 0;
}

/* The magic, the version and the length field: leaves the cursor on the dictionary alone. */
static int parse_preamble(struct cursor *c, const unsigned char *bytes, int64_t count)
{
    struct excerpt start = excerpt_of((const char *)bytes, (const char *)bytes + count);
    int64_t compared = count < MAGIC_BYTES ? count : MAGIC_BYTES;
    if (count == 0)
        return fail(c, "the file is empty; a .npy file begins with \\x93NUMPY");
    if (memcmp(bytes, MAGIC, (size_t)compared))
        return fail(
            c, "not a .npy file: it begins with \"%.6s\", allowed is \\x93NUMPY", start.text);
    if (count < MAGIC_BYTES + 2)
        return fail(c, "cut in the header after %" PRId64 " bytes", count);
    int major = bytes[6], minor = bytes[7];
    if (major < 1 || major > 3 || minor != 0)
        return fail(c, "version %d.%d of the format; allowed are 1.0, 2.0 and 3.0", major, minor);

    int64_t begin = MAGIC_BYTES + 2 + (major == 1 ? 2 : 4), length = 0;
    if (count < begin)
        return fail(c, "cut in the header after %" PRId64 " bytes", count);
    for (int64_t i = begin - 1; i >= MAGIC_BYTES + 2; i--)
        length = length << 8 | bytes[i];
    if (length > NPY_HEADER_MAX_BYTES - begin)
        return fail(c, "header of %" PRId64 " bytes; allowed are at most %" PRId64, length,
            NPY_HEADER_MAX_BYTES - begin);
    if (length > count - begin)
        return fail(c, "cut in the header: %" PRId64 " of its %" PRId64 " bytes are there",
            count - begin, length);
    c->at = (const char *)bytes + begin;
    c->end = c->at + length;
    return 0;
}

int npy_header_parse(const unsigned char *bytes, int64_t count, int64_t file_bytes,
    struct npy_array *out, int64_t *data_at, char *error, int size)
{
    struct cursor c = {.error = error, .size = size};
    if (parse_preamble(&c, bytes, count))
        return -1;
    *data_at = c.end - (const char *)bytes;
    if (parse_dictionary(&c, out))
        return -1;

    char shape[200];
    int64_t wanted_bytes, found_bytes = file_bytes - *data_at;
    npy_shape_text(out->dims, out->shape, shape, sizeof shape);
    if (npy_shape_count(out->type, out->dims, out->shape, &out->count, &wanted_bytes))
        return fail(&c, "shape %s of %s passes 2^63 - 1 bytes", shape, npy_type_name(out->type));
    if (found_bytes != wanted_bytes)
        return fail(&c, "%s: %" PRId64 " bytes of data, shape %s of %s takes %" PRId64,
            found_bytes < wanted_bytes ? "truncated" : "trailing bytes", found_bytes, shape,
            npy_type_name(out->type), wanted_bytes);
    return 0;
}

void npy_shape_text(int dims, const int64_t *shape, char *text, int size)
{
    int length = snprintf(text, (size_t)size, "(");
    for (int i = 0; i < dims && length < size; i++)
        length +=
            snprintf(text + length, (size_t)(size - length), "%s%" PRId64, i ? ", " : "", shape[i]);
    if (length < size)
        snprintf(text + length, (size_t)(size - length), dims == 1 ? ",)" : ")");
}

int npy_header_format(
    char text[NPY_HEADER_WRITTEN_BYTES], enum npy_type type, int dims, const int64_t *shape)
{
    enum { BEGIN = MAGIC_BYTES + 4, TUPLE_BYTES = 22 * NPY_MAX_DIMS };
    char tuple[TUPLE_BYTES];
    npy_shape_text(dims, shape, tuple, sizeof tuple);
    int length = BEGIN + snprintf(text + BEGIN, NPY_HEADER_WRITTEN_BYTES - BEGIN,
                             "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                             types[type].descr, tuple);
    while ((length + 1) % ALIGNMENT)
        text[length++] = ' ';
    text[length++] = '\n';
    memcpy(text, MAGIC "\x01", MAGIC_BYTES + 2); /* version 1 and, from the terminator, .0 */
    text[8] = (char)((length - BEGIN) & 255);
    text[9] = (char)((length - BEGIN) >> 8);
    return length;
}
