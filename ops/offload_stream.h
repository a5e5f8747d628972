/* What the tests of the gate reach inside offload-stream. */
#pragma once
#include "ops/adamw.h"

/* Enqueues a bucket as the implementation does. With reuse_at_once the upload does not wait until
 * the slot's last bucket is written back: the fault that a wrong schedule would have, which the
 * checks must catch. */
void offload_stream_bucket(
    struct adamw *a, const struct adamw_bucket *bucket, struct event ready, bool reuse_at_once);
