/* XXH3-128 of a tensor's bytes, every NaN counted as the one quiet NaN. */
#pragma once
#include <stdint.h>

#define DIGEST_TEXT 33 /* 32 hex digits and the terminator */

/* A digest built from pieces in order. */
struct digest;
struct digest *digest_create(void);
void digest_f32(struct digest *d, const float *values, int64_t count);
void digest_bf16(struct digest *d, const uint16_t *values, int64_t count);
void digest_finish(struct digest *d, char text[DIGEST_TEXT]); /* frees d */
