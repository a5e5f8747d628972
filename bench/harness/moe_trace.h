/* A user's router trace (docs/TRACES.md): expert ids, int32 or int64, -1 = empty slot, as
 *
 *   FILE.npy         [N, k] the same on every rank, [P, N, k], [step, P, N, k] or
 *                    [step, layer, P, N, k]
 *   DIR              one file per rank, rank_0.npy, rank_1.npy ... or 0.npy, 1.npy ..., each [N_r,
 * k], [step, N_r, k] or [step, layer, N_r, k]; N_r may differ, the rest may not counts:FILE.npy
 * routes per source rank and expert: [P, E], [step, P, E] or [step, layer, P, E]
 *
 * Counts name no tokens. A routing that has these counts is made of them: rank r's routes, by
 * expert, are dealt to ceil(routes / k) tokens (of the step that has most) in a shuffled order.
 * Plans, loads, sends and memory follow from that; which experts meet in one token does not. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "probe/npy.h"

enum moe_trace_kind { MOE_TRACE_INDICES, MOE_TRACE_COUNTS };

struct moe_trace {
    enum moe_trace_kind kind;
    int64_t steps, layers; /* 1 where the files have none */
    bool same;             /* one rank's indices, for every rank */
    int ranks;             /* 0 with `same` */
    int topk;              /* 0 of counts */
    int64_t experts;       /* of counts; 0 of indices */
    bool folder;           /* one file per rank */
    int files;
    struct npy_array *file;
    char **path;
};

/* Reads PATH, with "counts:" before it or not. 0, or -1 with `error`; moe_trace_free in any case.
 */
int moe_trace_read(struct moe_trace *trace, const char *path, char *error, int size);
void moe_trace_free(struct moe_trace *trace);

/* Is this text a trace's (ends in .npy, begins with counts:, or names a folder)? */
bool moe_trace_named(const char *text);

/* Every index in [0, experts) or -1; counts (which are looked at when they are read) of as many
 * experts. 0, or -1 with `error` naming the first index that is not by file and coordinates. */
int moe_trace_check(const struct moe_trace *trace, int64_t experts, char *error, int size);

/* Tokens of each rank; topk is asked for of counts only. 0, or -1 with `error` when the trace is of
 * another number of ranks. */
int moe_trace_tokens(
    const struct moe_trace *trace, int ranks, int topk, int64_t *tokens, char *error, int size);

/* idx [tokens, topk] of one rank; instance = step * layers + layer. The trace passed its check. 0,
 * or -1 when memory is short. */
int moe_trace_fill(const struct moe_trace *trace, int64_t instance, int rank, int64_t tokens,
    int topk, int32_t *idx);
