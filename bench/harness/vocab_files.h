/* A user's own tensors for the vocabulary problem, and the results as files.
 *
 * DIR/x.npy [tokens, hidden] and DIR/w.npy [vocab, hidden]: both float32, or both uint16 holding
 * BF16 bits; DIR/targets.npy [tokens] int64, each in [0, vocab) or -100. C order. */
#pragma once
#include "bench/harness/vocab_run.h"
#include "probe/npy.h"

struct vocab_files {
    struct npy_array x, w, targets;
    int64_t tokens, hidden, vocab;
    enum dtype dtype;
};

/* 0, or -1 with `error` naming the file, what was found and what is allowed. */
int vocab_files_load(const char *dir, struct vocab_files *files, char *error, int size);
void vocab_files_free(struct vocab_files *files);

/* Inputs over the files' arrays, which must outlive them; shape->tokens must add up to
 * files->tokens. 0, or -1 when memory is short. */
int vocab_inputs_from_files(
    struct vocab_inputs *inputs, const struct vocab_shape *shape, const struct vocab_files *files);

/* Writes DIR/loss.npy, and after a backward pass DIR/dX.npy and DIR/dW.npy. DIR is made if missing.
 * 0, or -1 with `error`. */
int vocab_files_dump(const char *dir, const struct vocab_shape *shape,
    const struct vocab_outputs *outputs, char *error, int size);
