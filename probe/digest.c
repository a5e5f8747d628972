/* Streaming XXH3-128 through a block that is copied, cleared of NaN payloads and hashed while it is
 * in the first-level cache. The hash sees one stream of bytes, so the digest does not depend on how
 * a tensor was cut into pieces; its text is the canonical (big endian) form that xxhsum prints. */
#include "probe/digest.h"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are hashed in memory order");

enum { BLOCK_BYTES = 8192 };

struct digest {
    XXH3_state_t *state;
};

struct digest *digest_create(void)
{
    struct digest *d = malloc(sizeof *d);
    if (!d)
        return NULL;
    d->state = XXH3_createState();
    if (!d->state || XXH3_128bits_reset(d->state) == XXH_ERROR) {
        XXH3_freeState(d->state);
        free(d);
        return NULL;
    }
    return d;
}

static void update(struct digest *d, const void *bytes, size_t count)
{
    XXH_errorcode code = XXH3_128bits_update(d->state, bytes, count);
    assert(code == XXH_OK); /* it refuses a null input and nothing else */
    (void)code;
}

void digest_f32(struct digest *d, const float *values, int64_t count)
{
    enum { BLOCK = BLOCK_BYTES / sizeof(uint32_t) };
    uint32_t block[BLOCK];
    for (int64_t done = 0; done < count; done += BLOCK) {
        size_t length = count - done < BLOCK ? (size_t)(count - done) : BLOCK;
        memcpy(block, values + done, length * sizeof *block);
        for (size_t i = 0; i < length; i++)
            block[i] = (block[i] & 0x7fffffff) > 0x7f800000 ? 0x7fc00000 : block[i];
        update(d, block, length * sizeof *block);
    }
}

void digest_bf16(struct digest *d, const uint16_t *values, int64_t count)
{
    enum { BLOCK = BLOCK_BYTES / sizeof(uint16_t) };
    uint16_t block[BLOCK];
    for (int64_t done = 0; done < count; done += BLOCK) {
        size_t length = count - done < BLOCK ? (size_t)(count - done) : BLOCK;
        for (size_t i = 0; i < length; i++) {
            uint16_t bits = values[done + (int64_t)i];
            block[i] = (bits & 0x7fff) > 0x7f80 ? 0x7fc0 : bits;
        }
        update(d, block, length * sizeof *block);
    }
}

void digest_finish(struct digest *d, char text[DIGEST_TEXT])
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(d->state));
    for (size_t i = 0; i < sizeof canonical.digest; i++)
        snprintf(text + 2 * i, 3, "%02x", canonical.digest[i]);
    XXH3_freeState(d->state);
    free(d);
}
