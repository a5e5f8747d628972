/* .npy files: what is written is read back, every refusal names its reason, and no sequence of
 * bytes makes the reader do anything but answer. */
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include "probe/npy.h"
#include "probe/npy_header.h"
#include "probe/seed.h"
#include "tests/scratch.h"
#include "tests/tap.h"

static struct scratch scratch;

/* A .npy file in memory: magic, version, header length and header, then `data_bytes` zeros. */
struct made {
    unsigned char bytes[1024];
    size_t count;
};
static struct made make(int major, int minor, const char *header, size_t data_bytes)
{
    struct made made = {{0}, 0};
    size_t length = strlen(header), begin = major == 1 ? 10 : 12;
    memcpy(made.bytes, "\x93NUMPY", 6);
    made.bytes[6] = (unsigned char)major;
    made.bytes[7] = (unsigned char)minor;
    made.bytes[8] = (unsigned char)(length & 255);
    made.bytes[9] = (unsigned char)(length >> 8);
    memcpy(made.bytes + begin, header, length);
    made.count = begin + length + data_bytes;
    return made;
}

static int read_bytes(
    const void *bytes, size_t count, struct npy_array *array, char *error, int size)
{
    struct scratch_path path = scratch_path(&scratch, "in.npy");
    error[0] = 0;
    if (!scratch_write(path.text, bytes, count))
        return -2;
    return npy_read(path.text, array, error, size);
}

static void test_round_trip(void)
{
    static const struct {
        int dims;
        int64_t shape[NPY_MAX_DIMS];
    } shapes[] = {
        {0, {0}},
        {1, {7}},
        {1, {0}},
        {2, {3, 5}},
        {3, {2, 0, 4}},
        {8, {1, 2, 1, 3, 1, 2, 1, 2}},
    };
    struct scratch_path path = scratch_path(&scratch, "round.npy");
    char data[8 * 64], error[300];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (char)(i * 37 + 11);
    for (int type = 0; type <= NPY_U32; type++) {
        bool same = true;
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            struct npy_array array;
            int64_t count, bytes;
            npy_shape_count(type, shapes[s].dims, shapes[s].shape, &count, &bytes);
            same &= !npy_write(
                path.text, type, shapes[s].dims, shapes[s].shape, data, error, sizeof error);
            same &= !npy_read(path.text, &array, error, sizeof error);
            same &= array.type == (enum npy_type)type && array.dims == shapes[s].dims &&
                    array.count == count &&
                    !memcmp(array.shape, shapes[s].shape, (size_t)array.dims * sizeof(int64_t)) &&
                    array.data && !memcmp(array.data, data, (size_t)bytes);
            npy_free(&array);
            same &= !array.data && !array.count;
        }
        tap_ok(same, "%s comes back as it was written, in every shape", npy_type_name(type));
    }
    tap_ok(scratch_entries(&scratch) == 1, "writing leaves no other file behind");
}

static void test_written_bytes(void)
{
    struct scratch_path path = scratch_path(&scratch, "written.npy");
    char error[300];
    size_t count;
    const int64_t shape[] = {2, 3};
    const float data[6] = {1, 2, 3, 4, 5, 6};
    npy_write(path.text, NPY_F32, 2, shape, data, error, sizeof error);
    char *bytes = scratch_read(path.text, &count);
    static const char start[] = "\x93NUMPY\x01\x00\x76\x00"
                                "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
    tap_ok(bytes && count == 128 + sizeof data && !memcmp(bytes, start, sizeof start - 1) &&
               bytes[127] == '\n' && !memcmp(bytes + 128, data, sizeof data),
        "a written file is byte for byte what NumPy writes");
    free(bytes);
}

static void test_accepted(void)
{
    static const struct {
        int major;
        const char *header, *what;
    } accepted[] = {
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", "version 1.0"},
        {2, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", "version 2.0"},
        {3, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", "version 3.0"},
        {1, "{\"shape\":(2,3,),\"fortran_order\":False,\"descr\":\"<f4\"}",
            "other quotes and key order, no white space"},
        {1,
            " \t{ 'shape' :\n( 2 , 3 ) , 'descr' : '<f4' , 'fortran_order' : False \r\n, } "
            "  \n",
            "white space everywhere"},
    };
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++) {
        struct made made = make(accepted[i].major, 0, accepted[i].header, 24);
        struct npy_array array;
        char error[300];
        bool read = !read_bytes(made.bytes, made.count, &array, error, sizeof error);
        tap_ok(read && array.type == NPY_F32 && array.dims == 2 && array.shape[0] == 2 &&
                   array.shape[1] == 3 && array.count == 6,
            "%s is read %s", accepted[i].what, error);
        npy_free(&array);
    }
}

#define HEADER(descr, order, shape)                                                                \
    "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape ", }\n"

static void test_refused_headers(void)
{
    static const struct {
        int major, minor;
        const char *header;
        size_t data_bytes;
        const char *reason;
    } refused[] = {
        {1, 0, HEADER("'<f4'", "True", "(2, 3)"), 24, "Fortran order"},
        {1, 0, HEADER("'>f4'", "False", "(2, 3)"), 24, "big-endian dtype '>f4'"},
        {1, 0, HEADER("'<f2'", "False", "(2, 3)"), 12, "dtype '<f2'; allowed are float32"},
        {1, 0, HEADER("'|O'", "False", "(2, 3)"), 48, "dtype '|O'"},
        {1, 0, HEADER("''", "False", "(2, 3)"), 24, "dtype ''"},
        {1, 0, HEADER("[('a', '<f4')]", "False", "(2, 3)"), 24, "structured dtype"},
        {1, 0, HEADER("4", "False", "(2, 3)"), 24, "where the dtype, a string, is due"},
        {1, 0, HEADER("'<f4'", "False", "(2, 3)"), 23, "truncated: 23 bytes of data"},
        {1, 0, HEADER("'<f4'", "False", "(2, 3)"), 0, "truncated: 0 bytes of data"},
        {1, 0, HEADER("'<f4'", "False", "(2, 3)"), 25, "trailing bytes: 25 bytes of data"},
        {1, 0, HEADER("'<f4'", "False", "(2, 0)"), 1, "trailing bytes"},
        {1, 0, HEADER("'<f4'", "False", "(2, -3)"), 24, "negative extent"},
        {1, 0, HEADER("'<f4'", "False", "(9223372036854775808,)"), 24, "an extent"},
        {1, 0, HEADER("'<f4'", "False", "(99999999999999999999999,)"), 24, "an extent"},
        {1, 0, HEADER("'<f4'", "False", "(4294967296, 4294967296)"), 24, "passes 2^63 - 1"},
        {1, 0, HEADER("'<f4'", "False", "(4611686018427387904,)"), 24, "passes 2^63 - 1"},
        {1, 0, HEADER("'<f4'", "False", "(0, 4294967296, 4294967296)"), 0, "passes 2^63 - 1"},
        {1, 0, HEADER("'<f4'", "False", "(1, 1, 1, 1, 1, 1, 1, 1, 6)"), 24, "8 dimensions"},
        {1, 0, HEADER("'<f4'", "False", "(6)"), 24, "a tuple of one is (6,)"},
        {1, 0, HEADER("'<f4'", "False", "[2, 3]"), 24, "where the shape, a tuple"},
        {1, 0, HEADER("'<f4'", "False", "(2 3)"), 24, "where ',' or ')' is due"},
        {1, 0, HEADER("'<f4'", "False", "(2.0, 3)"), 24, "where ',' or ')' is due"},
        {1, 0, HEADER("'<f4'", "False", "(2L, 3L)"), 24, "where ',' or ')' is due"},
        {1, 0, HEADER("'<f4'", "False", "(,)"), 24, "where an extent or ')' is due"},
        {1, 0, HEADER("'<f4'", "False", "(2,, 3)"), 24, "where an extent or ')' is due"},
        {1, 0, HEADER("'<f4'", "0", "(2, 3)"), 24, "where True or False is due"},
        {1, 0, HEADER("'<f4'", "Falsehood", "(2, 3)"), 24, "where True or False is due"},
        {1, 0, HEADER("'<f4", "False", "(2, 3)"), 24, "dtype '<f4, '"},
        {1, 0, HEADER("'<f\\x34'", "False", "(2, 3)"), 24, "where a closing quote is due"},
        {1, 0, "{'descr': '<f4', 'fortran_order': False}", 24, "key 'shape' is missing"},
        {1, 0, "{'descr': '<f4', 'shape': (2, 3)}", 24, "key 'fortran_order' is missing"},
        {1, 0, "{}", 24, "key 'descr' is missing"},
        {1, 0, "{'descr': '<f4', 'descr': '<f4'}", 24, "key 'descr' stands twice"},
        {1, 0, "{'title': '<f4'}", 24, "unknown key 'title'"},
        {1, 0, "{'descr' '<f4'}", 24, "where ':' is due"},
        {1, 0, "{'descr': '<f4' 'shape': (2, 3)}", 24, "where ',' or '}' is due"},
        {1, 0, "{'descr': '<f4", 24, "header ends where a closing quote is due"},
        {1, 0, "{'descr': ", 0, "header ends where"},
        {1, 0, "('descr',)", 24, "where '{' is due"},
        {1, 0, "", 24, "header ends where '{' is due"},
        {1, 0, HEADER("'<f4'", "False", "(2, 3)") "x", 24, "where the end of the header is due"},
        {0, 9, HEADER("'<f4'", "False", "(2, 3)"), 24, "version 0.9"},
        {4, 0, HEADER("'<f4'", "False", "(2, 3)"), 24, "version 4.0"},
        {1, 1, HEADER("'<f4'", "False", "(2, 3)"), 24, "version 1.1"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct made made =
            make(refused[i].major, refused[i].minor, refused[i].header, refused[i].data_bytes);
        struct npy_array array;
        char error[500];
        int result = read_bytes(made.bytes, made.count, &array, error, sizeof error);
        const char *name = strstr(error, "in.npy: ");
        tap_ok(result == -1 && !array.data && name && strstr(error, refused[i].reason),
            "refused: %s", name ? name : error);
        npy_free(&array);
    }
}

static void test_refused_files(void)
{
    char error[500];
    struct npy_array array;
    struct scratch_path missing = scratch_path(&scratch, "missing.npy");
    int result = npy_read(missing.text, &array, error, sizeof error);
    tap_ok(result == -1 && strstr(error, "No such file"), "a missing file: %s", error);
    result = npy_read(scratch.folder, &array, error, sizeof error);
    tap_ok(result == -1 && strstr(error, "a directory"), "a folder: %s", error);
    struct scratch_path pipe = scratch_path(&scratch, "pipe.npy");
    if (tap_ok(!mkfifo(pipe.text, 0600), "a pipe for the test")) {
        result = npy_read(pipe.text, &array, error, sizeof error);
        tap_ok(result == -1 && strstr(error, "pipe or socket"), "a pipe: %s", error);
        unlink(pipe.text);
    }
    result = read_bytes("", 0, &array, error, sizeof error);
    tap_ok(result == -1 && strstr(error, "the file is empty"), "an empty file: %s", error);
    result = read_bytes("PK\3\4 and more", 12, &array, error, sizeof error);
    tap_ok(result == -1 && strstr(error, "not a .npy file"), "an archive: %s", error);
    result = read_bytes("\x93NUM", 4, &array, error, sizeof error);
    tap_ok(result == -1 && strstr(error, "after 4 bytes"), "half a magic: %s", error);
    result = read_bytes("\x93NUMPY\2\0\xff\xff\xff\xff", 12, &array, error, sizeof error);
    tap_ok(result == -1 && strstr(error, "header of 4294967295 bytes"), "a huge header: %s", error);
    result = read_bytes("\x93NUMPY\1\0\x76\0{", 11, &array, error, sizeof error);
    tap_ok(result == -1 && strstr(error, "1 of its 118 bytes"), "half a header: %s", error);
}

/* A header whose excerpt is not printable must not reach a terminal as it is. */
static void test_unprintable(void)
{
    struct made made = make(1, 0, "{'descr': '\x1b[31m\xff'}", 0);
    struct npy_array array;
    char error[500];
    read_bytes(made.bytes, made.count, &array, error, sizeof error);
    bool printable = true;
    for (const char *c = error; *c; c++)
        printable &= *c >= ' ' && *c <= '~';
    tap_ok(printable && strstr(error, "?[31m?"), "control bytes are not echoed");
}

/* Parses from a block of exactly `count` bytes, so that a sanitizer sees any step past the end. */
static int parse_exactly(const unsigned char *bytes, size_t count, char *reason, int size)
{
    unsigned char *copy = malloc(count ? count : 1);
    struct npy_array array = {0};
    int64_t data_at = -1;
    char error[400] = "";
    int64_t head = (int64_t)(count < NPY_HEADER_MAX_BYTES ? count : NPY_HEADER_MAX_BYTES);
    memcpy(copy, bytes, count);
    int result =
        npy_header_parse(copy, head, (int64_t)count, &array, &data_at, error, sizeof error);
    if (!result &&
        (array.dims < 0 || array.dims > NPY_MAX_DIMS || array.count < 0 || data_at < 10 ||
            data_at + array.count * npy_type_bytes(array.type) != (int64_t)count))
        result = -3;
    if (result == -1 && !error[0])
        result = -4;
    snprintf(reason, (size_t)size, "%s", error);
    free(copy);
    return result;
}

static void test_hostile(void)
{
    struct made made = make(1, 0, HEADER("'<f4'", "False", "(2, 3)"), 24);
    char reason[400];
    bool cut = true, named = true, sane = true;
    for (size_t count = 0; count < made.count; count++) {
        cut &= parse_exactly(made.bytes, count, reason, sizeof reason) == -1;
        const char *part = !count                    ? "the file is empty"
                           : count < made.count - 24 ? "cut in the header"
                                                     : "truncated";
        named &= strstr(reason, part) != NULL;
    }
    tap_ok(cut, "every truncation of a valid file is refused");
    tap_ok(named, "by the part where it was cut");
    tap_ok(!parse_exactly(made.bytes, made.count, reason, sizeof reason), "and the whole is not");

    int accepted = 0;
    enum { TRIES = 100000 };
    for (int64_t i = 0; i < TRIES; i++) {
        struct made hurt = made;
        int64_t flips = 1 + seed_index(1, 0, i, 4);
        for (int64_t f = 0; f < flips; f++) {
            int64_t at = seed_index(1, 1, 4 * i + f, (int64_t)hurt.count);
            hurt.bytes[at] = (unsigned char)seed_bits(1, 2, 4 * i + f);
        }
        int result = parse_exactly(hurt.bytes, hurt.count, reason, sizeof reason);
        sane &= result == 0 || result == -1;
        accepted += result == 0;
    }
    tap_ok(sane, "%d files with 1 to 4 random bytes are refused or read soundly", TRIES);
    tap_ok(accepted > 0 && accepted < TRIES, "some of them (%d) hurt nothing but data", accepted);

    static const char letters[] = "{}()[]'\":,<>f48 -\\Tru eFalsdcrhpotn_019\n";
    sane = true;
    for (int64_t i = 0; i < TRIES; i++) {
        char header[41];
        int64_t length = seed_index(2, 0, i, 40);
        for (int64_t k = 0; k < length; k++)
            header[k] = letters[seed_index(2, 1, 40 * i + k, sizeof letters - 1)];
        header[length] = 0;
        struct made garbage = make(1, 0, header, 0);
        sane &= parse_exactly(garbage.bytes, garbage.count, reason, sizeof reason) == -1;
    }
    tap_ok(sane, "%d headers of the grammar's letters in random order are refused", TRIES);
}

static void test_short_error(void)
{
    char error[8];
    struct npy_array array;
    int result = npy_read("/nonexistent/x.npy", &array, error, sizeof error);
    tap_ok(result == -1 && strlen(error) == 7, "a short error buffer gets a cut message");
}

static void test_refused_writes(void)
{
    char error[500];
    const float one = 1;
    struct scratch_path path = scratch_path(&scratch, "out.npy");
    const int64_t negative[] = {-1}, huge[] = {INT64_C(1) << 62, 4}, single[] = {1};
    int result = npy_write(path.text, NPY_F32, 9, single, &one, error, sizeof error);
    tap_ok(result == -1 && strstr(error, "9 dimensions"), "%s", error);
    result = npy_write(path.text, NPY_F32, -1, single, &one, error, sizeof error);
    tap_ok(result == -1 && strstr(error, "-1 dimensions"), "%s", error);
    result = npy_write(path.text, NPY_F32, 1, negative, &one, error, sizeof error);
    tap_ok(result == -1 && strstr(error, "shape (-1,)"), "%s", error);
    result = npy_write(path.text, NPY_F32, 2, huge, &one, error, sizeof error);
    tap_ok(result == -1 && strstr(error, "shape (4611686018427387904, 4)"), "%s", error);
    result = npy_write("/nonexistent/x.npy", NPY_F32, 1, single, &one, error, sizeof error);
    tap_ok(result == -1 && strstr(error, "No such file"), "%s", error);
    result = npy_write(scratch.folder, NPY_F32, 1, single, &one, error, sizeof error);
    tap_ok(result == -1 && strstr(error, "directory"), "%s", error);
}

/* A file size limit stands for a full disk: the file that was there must stay as it was. */
static void test_full_disk(void)
{
    struct scratch_path path = scratch_path(&scratch, "full.npy");
    char error[500];
    const int64_t shape[] = {1000}, larger[] = {1 << 18};
    float *data = calloc(1 << 18, sizeof *data);
    struct rlimit before, small;
    scratch_text(path.text, "as it was");
    int entries = scratch_entries(&scratch);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 1000;
    setrlimit(RLIMIT_FSIZE, &small);
    int result = npy_write(path.text, NPY_F32, 1, shape, data, error, sizeof error);
    int larger_result = npy_write(path.text, NPY_F32, 1, larger, data, error, sizeof error);
    setrlimit(RLIMIT_FSIZE, &before);
    size_t count;
    char *kept = scratch_read(path.text, &count);
    tap_ok(result == -1 && larger_result == -1 && strstr(error, strerror(EFBIG)), "a full disk: %s",
        error);
    tap_ok(kept && !strcmp(kept, "as it was"), "what stood there is as it was");
    tap_ok(scratch_entries(&scratch) == entries, "and nothing was left beside it");
    free(kept);
    free(data);
}

static void test_link(void)
{
    struct scratch_path target = scratch_path(&scratch, "target.npy");
    struct scratch_path link = scratch_path(&scratch, "link.npy");
    char error[500];
    struct stat status;
    const int64_t shape[] = {1};
    const float one = 1;
    scratch_text(target.text, "old");
    bool ready = symlink(target.text, link.text) == 0;
    bool written = !npy_write(link.text, NPY_F32, 1, shape, &one, error, sizeof error);
    bool still = lstat(link.text, &status) == 0 && S_ISLNK(status.st_mode);
    struct npy_array array;
    bool read = !npy_read(target.text, &array, error, sizeof error);
    tap_ok(ready && written && still && read && array.count == 1,
        "writing through a link replaces its target and keeps the link");
    npy_free(&array);
}

int main(void)
{
    if (tap_ok(scratch_create(&scratch), "a folder for the test")) {
        test_round_trip();
        test_written_bytes();
        test_accepted();
        test_refused_headers();
        test_refused_files();
        test_unprintable();
        test_hostile();
        test_short_error();
        test_refused_writes();
        test_full_disk();
        test_link();
        scratch_remove(&scratch);
    }
    return tap_done();
}
