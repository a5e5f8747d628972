/* --load and --dump of the vocabulary program. */
#include "bench/harness/vocab_files.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/dump.h"
#include "kernels/strip.h"

#define PATH_SIZE 4096

static int load_one(const char *dir, const char *name, int dims, const char *shape,
    struct npy_array *out, char *error, int size)
{
    char path[PATH_SIZE];
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= PATH_SIZE) {
        snprintf(error, (size_t)size, "%s/%s: path too long", dir, name);
        return -1;
    }
    if (npy_read(path, out, error, size))
        return -1;
    if (out->dims == dims)
        return 0;
    snprintf(error, (size_t)size, "%s: got %d dimensions, allowed %s", path, out->dims, shape);
    return -1;
}

static int check_types(const char *dir, const struct vocab_files *f, char *error, int size)
{
    if (f->x.type != NPY_F32 && f->x.type != NPY_U16) {
        snprintf(error, (size_t)size, "%s/x.npy: got %s, allowed float32 or uint16 (BF16 bits)",
            dir, npy_type_name(f->x.type));
        return -1;
    }
    if (f->w.type != f->x.type) {
        snprintf(error, (size_t)size, "%s/w.npy: got %s, allowed %s as in x.npy", dir,
            npy_type_name(f->w.type), npy_type_name(f->x.type));
        return -1;
    }
    if (f->targets.type != NPY_I64) {
        snprintf(error, (size_t)size, "%s/targets.npy: got %s, allowed int64", dir,
            npy_type_name(f->targets.type));
        return -1;
    }
    return 0;
}

static int check_shapes(const char *dir, const struct vocab_files *f, char *error, int size)
{
    if (f->hidden < 1 || f->vocab < 1) {
        snprintf(error, (size_t)size,
            "%s/w.npy: got [%lld, %lld], allowed [vocab, hidden] of at least 1 each", dir,
            (long long)f->w.shape[0], (long long)f->w.shape[1]);
        return -1;
    }
    if (f->x.shape[1] != f->hidden) {
        snprintf(error, (size_t)size, "%s/x.npy: got hidden width %lld, allowed %lld as in w.npy",
            dir, (long long)f->x.shape[1], (long long)f->hidden);
        return -1;
    }
    if (f->targets.shape[0] != f->tokens) {
        snprintf(error, (size_t)size, "%s/targets.npy: got %lld targets, allowed %lld as in x.npy",
            dir, (long long)f->targets.shape[0], (long long)f->tokens);
        return -1;
    }
    return 0;
}

static int check_targets(const char *dir, const struct vocab_files *f, char *error, int size)
{
    const int64_t *targets = f->targets.data;
    for (int64_t i = 0; i < f->tokens; i++)
        if (targets[i] != VOCAB_IGNORED && (targets[i] < 0 || targets[i] >= f->vocab)) {
            snprintf(error, (size_t)size,
                "%s/targets.npy: token %lld has target %lld, allowed 0..%lld or %d (ignored)", dir,
                (long long)i, (long long)targets[i], (long long)f->vocab - 1, VOCAB_IGNORED);
            return -1;
        }
    return 0;
}

int vocab_files_load(const char *dir, struct vocab_files *files, char *error, int size)
{
    *files = (struct vocab_files){0};
    if (load_one(dir, "x.npy", 2, "2: [tokens, hidden]", &files->x, error, size) ||
        load_one(dir, "w.npy", 2, "2: [vocab, hidden]", &files->w, error, size) ||
        load_one(dir, "targets.npy", 1, "1: [tokens]", &files->targets, error, size) ||
        check_types(dir, files, error, size)) {
        vocab_files_free(files);
        return -1;
    }
    files->tokens = files->x.shape[0];
    files->vocab = files->w.shape[0];
    files->hidden = files->w.shape[1];
    files->dtype = files->x.type == NPY_U16 ? DTYPE_BF16 : DTYPE_F32;
    if (check_shapes(dir, files, error, size) || check_targets(dir, files, error, size)) {
        vocab_files_free(files);
        return -1;
    }
    return 0;
}

void vocab_files_free(struct vocab_files *files)
{
    npy_free(&files->x);
    npy_free(&files->w);
    npy_free(&files->targets);
}

int vocab_inputs_from_files(
    struct vocab_inputs *inputs, const struct vocab_shape *shape, const struct vocab_files *files)
{
    size_t bytes = (size_t)files->tokens * sizeof(int64_t);
    *inputs = (struct vocab_inputs){.shape = *shape, .x = files->x.data, .w = files->w.data};
    inputs->targets = malloc(bytes + 1);
    if (!inputs->targets)
        return -1;
    memcpy(inputs->targets, files->targets.data, bytes);
    return 0;
}

int vocab_files_dump(const char *dir, const struct vocab_shape *shape,
    const struct vocab_outputs *outputs, char *error, int size)
{
    int64_t tokens = vocab_total_tokens(shape);
    int64_t x_shape[2] = {tokens, shape->hidden}, w_shape[2] = {shape->vocab, shape->hidden};
    enum npy_type type = shape->dtype == DTYPE_BF16 ? NPY_U16 : NPY_F32;
    return dump_folder(dir, error, size) ||
                   dump_tensor(dir, "loss", NPY_F32, 1, &tokens, outputs->loss, error, size) ||
                   dump_tensor(dir, "dX", type, 2, x_shape, outputs->dx, error, size) ||
                   dump_tensor(dir, "dW", NPY_F32, 2, w_shape, outputs->dw, error, size)
               ? -1
               : 0;
}
