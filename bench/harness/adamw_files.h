/* A user's own values for the optimizer problem, and the state after it as files.
 *
 * DIR/p.npy and DIR/g.npy, float32, one dimension: all parameters in the model's order, tensor
 * after tensor. DIR/m.npy and DIR/v.npy likewise; without them the moments begin at 0. */
#pragma once
#include "bench/harness/adamw_run.h"
#include "probe/npy.h"

struct adamw_files {
    struct npy_array p, m, v, g;
    int64_t params;
};

/* 0, or -1 with `error` naming the file, what was found and what is allowed. */
int adamw_files_load(const char *dir, struct adamw_files *files, char *error, int size);
void adamw_files_free(struct adamw_files *files);

/* Inputs take the files' arrays, which must outlive them, in place of seeded values. The inputs
 * must hold files->params elements. */
void adamw_files_use(const struct adamw_files *files, struct adamw_inputs *inputs);

/* Writes DIR/p.npy, m.npy, v.npy (float32) and w.npy (uint16, BF16 bits). DIR is made if missing.
 * 0, or -1 with `error`. */
int adamw_files_dump(
    const char *dir, int64_t count, const struct adamw_outputs *outputs, char *error, int size);
