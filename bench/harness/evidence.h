/* What a record's times may stand for. */
#pragma once
#include <stdbool.h>
#include <jansson.h>

/* Of a GPU, or of the emulator in its place. */
bool evidence_is_gpu(const json_t *record);

/* Why the times of a record from a GPU are no figures of a paper's machine: "ranks share a GPU",
 * "products are exact" (on FP32 cores, which hides all communication), "the GPU is emulated". NULL
 * where they may be held against one; other devices' have verdicts of their own. */
const char *evidence_lacks(const json_t *record);

/* Two records are of the same shape when no option that both have differs, and the device is one.
 */
bool evidence_same_shape(const json_t *a, const json_t *b);

/* "pipelined-llep" of the record's op, impl, ... member; "" without one. */
const char *evidence_text(const json_t *record, const char *path);
