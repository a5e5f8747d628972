/* Who is blamed when ranks wait, are silent, or have left. */
#include "device/watch.h"
#include <stdio.h>
#include <string.h>
#include "tests/tap.h"

enum { RANKS = 4 };

static const double NOW_S = 100, TIMEOUT_S = 10, BEAT_S = 1;

/* All in group 3, at work, heard a moment ago. */
static void all_work(struct watch_rank *ranks)
{
    for (int r = 0; r < RANKS; r++) {
        ranks[r] = (struct watch_rank){
            .heard_s = NOW_S - 0.5, .state = WATCH_WORKS, .group = 3, .partner = -1};
        snprintf(ranks[r].phase, sizeof ranks[r].phase, "phase %d", r);
    }
}

static void waits(struct watch_rank *rank, int partner, double seconds)
{
    rank->state = WATCH_WAITS;
    rank->partner = partner;
    rank->waited_s = seconds;
    snprintf(rank->what, sizeof rank->what, "all_to_all_v");
}

static void expect(const char *name, const struct watch_rank *ranks, enum watch_verdict verdict,
    int blamed, const char *words)
{
    struct watch_finding finding = watch_judge(ranks, RANKS, NOW_S, TIMEOUT_S, BEAT_S);
    bool right = finding.verdict == verdict && finding.rank == blamed &&
                 strstr(finding.message, words) != NULL;
    tap_ok(right, "%s", name);
    if (!right)
        tap_note("verdict %d, rank %d: %s", finding.verdict, finding.rank, finding.message);
}

static void test_waiting(void)
{
    struct watch_rank ranks[RANKS];
    all_work(ranks);
    expect("ranks that work", ranks, WATCH_FINE, -1, "");
    waits(&ranks[0], 2, 9);
    expect("a wait within its time", ranks, WATCH_FINE, -1, "");
    waits(&ranks[0], 2, 9.8);
    expect("time since the last beat counts", ranks, WATCH_STUCK, 2, "rank 0 waited 10.3 s");
    waits(&ranks[0], 1, 30);
    waits(&ranks[1], 2, 29);
    waits(&ranks[2], 3, 28);
    expect("the end of a chain", ranks, WATCH_STUCK, 3,
        "rank 0 waited 30.5 s for it in 'all_to_all_v'; last: working, phase: phase 3");
    waits(&ranks[0], 1, 30);
    waits(&ranks[1], 0, 29);
    ranks[2].state = ranks[3].state = WATCH_WORKS;
    expect("two that wait for each other, one that works", ranks, WATCH_STUCK, 2, "waited");
    waits(&ranks[2], 0, 1);
    waits(&ranks[3], 0, 2);
    expect("all wait", ranks, WATCH_STUCK, 0, "all others wait too");
}

static void test_groups(void)
{
    struct watch_rank ranks[RANKS];
    all_work(ranks);
    waits(&ranks[0], 2, 20);
    waits(&ranks[1], 2, 20);
    waits(&ranks[3], 2, 20);
    ranks[2].state = WATCH_OUTSIDE;
    ranks[2].group = 2;
    expect("one that is still before the group", ranks, WATCH_STUCK, 2, "between two runs");
    for (int r = 0; r < RANKS; r++)
        ranks[r].state = WATCH_OUTSIDE;
    expect("between groups nobody waits", ranks, WATCH_FINE, -1, "");
    all_work(ranks);
    for (int r = 0; r < 3; r++) {
        ranks[r].state = WATCH_LEFT;
        ranks[r].waited_s = 15;
    }
    expect("others that have left wait for the end", ranks, WATCH_STUCK, 3, "'the end'");
    ranks[3].state = WATCH_LEFT;
    expect("all have left", ranks, WATCH_FINE, -1, "");
}

static void test_left(void)
{
    struct watch_rank ranks[RANKS];
    all_work(ranks);
    ranks[2].state = WATCH_LEFT;
    ranks[2].waited_s = 3;
    waits(&ranks[1], 2, 3);
    expect("a wait for one that has left", ranks, WATCH_GONE, 2,
        "rank 2 left while rank 1 waits for it in 'all_to_all_v'");
    ranks[1].waited_s = 1.5;
    expect("its last message may be on its way", ranks, WATCH_FINE, -1, "");
    ranks[1].waited_s = 3;
    ranks[2].waited_s = 0.5;
    expect("so when it has just left", ranks, WATCH_FINE, -1, "");
    ranks[2].waited_s = 3;
    ranks[2].group = 2;
    expect("it has left another group", ranks, WATCH_FINE, -1, "");
}

static void test_silent(void)
{
    struct watch_rank ranks[RANKS];
    all_work(ranks);
    waits(&ranks[3], 1, 4);
    ranks[3].heard_s = NOW_S - 12;
    waits(&ranks[0], 1, 20);
    expect("silence before waiting", ranks, WATCH_SILENT, 3,
        "was not heard of for 12 s; last: waiting for rank 1 in 'all_to_all_v', phase: phase 3");
    ranks[3].heard_s = NOW_S - 9;
    ranks[0].waited_s = 1;
    expect("silence within its time", ranks, WATCH_STUCK, 1, "waited 13 s");
    all_work(ranks);
    ranks[1].heard_s = NOW_S - 2;
    struct watch_finding finding = watch_judge(ranks, RANKS, NOW_S, 1, 1);
    tap_ok(finding.verdict == WATCH_FINE, "a timeout shorter than three beats");
}

int main(void)
{
    test_waiting();
    test_groups();
    test_left();
    test_silent();
    return tap_done();
}
