/* The memory probe: every figure by hand, and one byte more changes exactly what it must. */
#include <stdio.h>
#include <string.h>
#include "probe/memory.h"
#include "tests/tap.h"

static void test_names(void)
{
    bool distinct = true;
    for (int a = 0; a < LIVE_SET_COUNT; a++)
        for (int b = 0; b < a; b++)
            distinct &= strcmp(mem_live_set_name(a), mem_live_set_name(b)) != 0;
    tap_ok(distinct, "every live set has its own name");
    tap_ok(!strcmp(mem_live_set_name(LIVE_WEIGHTS), "weights") &&
               !strcmp(mem_live_set_name(LIVE_LOGITS), "logits") &&
               !strcmp(mem_live_set_name(LIVE_WORKSPACE), "workspace"),
        "the names are the design's");
}

static void test_peak(void)
{
    struct mem_probe probe;
    mem_init(&probe, 0);
    tap_ok(!probe.live_bytes && !probe.window.peak_bytes && !probe.failure.requested_bytes,
        "a new probe is empty");
    mem_add(&probe, 100, LIVE_WEIGHTS, "w");
    mem_add(&probe, 50, LIVE_LOGITS, "tile");
    mem_sub(&probe, 50, LIVE_LOGITS);
    mem_add(&probe, 30, LIVE_RING, "ring");
    tap_ok(probe.live_bytes == 130 && probe.set_bytes[LIVE_WEIGHTS] == 100 &&
               probe.set_bytes[LIVE_LOGITS] == 0 && probe.set_bytes[LIVE_RING] == 30,
        "live bytes follow adds and subs");
    tap_ok(probe.window.peak_bytes == 150, "the peak is the most that was live at once");
    tap_ok(probe.window.set_at_peak_bytes[LIVE_WEIGHTS] == 100 &&
               probe.window.set_at_peak_bytes[LIVE_LOGITS] == 50 &&
               probe.window.set_at_peak_bytes[LIVE_RING] == 0,
        "what was live at the peak is kept");
    tap_ok(probe.window.set_peak_bytes[LIVE_RING] == 30,
        "a live set's own peak may lie elsewhere than the peak");
    mem_add(&probe, 20, LIVE_RING, "ring");
    tap_ok(probe.window.peak_bytes == 150 && probe.window.set_at_peak_bytes[LIVE_LOGITS] == 50,
        "of equal peaks the first is kept");
    tap_ok(probe.allocations == 4, "allocations are counted");
}

static void test_window(void)
{
    struct mem_probe probe;
    mem_init(&probe, 0);
    mem_add(&probe, 1000, LIVE_LOGITS, "y");
    mem_sub(&probe, 900, LIVE_LOGITS);
    mem_window_reset(&probe);
    tap_ok(probe.window.peak_bytes == 100 && probe.window.set_peak_bytes[LIVE_LOGITS] == 100 &&
               probe.window.set_at_peak_bytes[LIVE_LOGITS] == 100,
        "a new window starts at what is live");
    tap_ok(probe.live_bytes == 100 && probe.allocations == 1, "a reset changes no other figure");
    mem_add(&probe, 7, LIVE_OUTPUT, "dx");
    mem_sub(&probe, 7, LIVE_OUTPUT);
    tap_ok(probe.window.peak_bytes == 107 && probe.window.set_peak_bytes[LIVE_OUTPUT] == 7,
        "peaks within the new window are its own");
    mem_sub(&probe, 100, LIVE_LOGITS);
    mem_window_reset(&probe);
    struct mem_window empty = {0};
    tap_ok(!memcmp(&probe.window, &empty, sizeof empty), "nothing live, nothing in the window");
}

static void test_limit(void)
{
    struct mem_probe probe;
    char text[200];
    mem_init(&probe, 100);
    mem_describe_failure(&probe, "device", text, sizeof text);
    tap_ok(!strcmp(text, "device: no request failed"), "no failure is said so: %s", text);
    tap_ok(mem_add(&probe, 60, LIVE_INPUT, "x") && mem_add(&probe, 40, LIVE_OUTPUT, "dx"),
        "a total equal to the limit fits");
    struct mem_probe before = probe;
    tap_ok(mem_add(&probe, 0, LIVE_OUTPUT, "nothing"), "zero bytes fit into a full arena");
    mem_sub(&probe, 40, LIVE_OUTPUT);
    before = probe;
    tap_ok(!mem_add(&probe, 41, LIVE_LOGITS, "column tile"), "one byte over the limit does not");
    tap_ok(probe.live_bytes == before.live_bytes && probe.allocations == before.allocations &&
               !memcmp(&probe.window, &before.window, sizeof probe.window) &&
               !memcmp(probe.set_bytes, before.set_bytes, sizeof probe.set_bytes),
        "a refused request counts nothing");
    tap_ok(!mem_add(&probe, 99, LIVE_RING, "second"), "a second request is refused");
    tap_ok(probe.failure.requested_bytes == 41 && probe.failure.live_bytes == 60 &&
               probe.failure.set == LIVE_LOGITS && !strcmp(probe.failure.label, "column tile"),
        "the first refusal is the one kept");
    tap_ok(mem_add(&probe, 40, LIVE_RING, "fits"), "after a refusal what fits still fits");
    mem_describe_failure(&probe, "rank 3 device", text, sizeof text);
    tap_ok(!strcmp(text,
               "rank 3 device: live set logits (column tile) asked for 41 bytes with 60 live; "
               "the limit is 100"),
        "%s", text);
    char small[12];
    mem_describe_failure(&probe, "rank 3 device", small, sizeof small);
    tap_ok(!strcmp(small, "rank 3 devi"), "a short buffer gets a cut sentence");
}

static void test_overflow(void)
{
    struct mem_probe probe;
    char text[200];
    mem_init(&probe, 0);
    mem_add(&probe, INT64_MAX - 5, LIVE_WEIGHTS, "w");
    tap_ok(!mem_add(&probe, 6, LIVE_WEIGHTS, NULL), "a sum beyond 2^63 is refused, not wrapped");
    tap_ok(probe.live_bytes == INT64_MAX - 5, "and counts nothing");
    mem_describe_failure(&probe, "host", text, sizeof text);
    tap_ok(strstr(text, "there is no limit") != NULL, "%s", text);

    char label[100];
    memset(label, 'a', sizeof label - 1);
    label[sizeof label - 1] = 0;
    mem_init(&probe, 1);
    mem_add(&probe, 2, LIVE_INPUT, label);
    tap_ok(strlen(probe.failure.label) == sizeof probe.failure.label - 1, "a long label is cut");
}

/* The same requests, the last add larger by `extra`. */
static struct mem_probe run(int64_t extra)
{
    struct mem_probe probe;
    mem_init(&probe, 0);
    mem_add(&probe, 100, LIVE_WEIGHTS, "w");
    mem_add(&probe, 20, LIVE_LOGITS, "first");
    mem_sub(&probe, 20, LIVE_LOGITS);
    mem_add(&probe, 50 + extra, LIVE_LOGITS, "second");
    return probe;
}

static void test_one_byte(void)
{
    struct mem_probe plain = run(0), more = run(1);
    plain.live_bytes++;
    plain.set_bytes[LIVE_LOGITS]++;
    plain.window.peak_bytes++;
    plain.window.set_peak_bytes[LIVE_LOGITS]++;
    plain.window.set_at_peak_bytes[LIVE_LOGITS]++;
    tap_ok(plain.live_bytes == more.live_bytes && plain.allocations == more.allocations &&
               !memcmp(plain.set_bytes, more.set_bytes, sizeof plain.set_bytes) &&
               !memcmp(&plain.window, &more.window, sizeof plain.window),
        "one byte more changes live, its set, the peak and its set's peaks by one, and no other "
        "figure");
}

int main(void)
{
    test_names();
    test_peak();
    test_window();
    test_limit();
    test_overflow();
    test_one_byte();
    return tap_done();
}
