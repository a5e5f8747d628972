/* Who is at fault when ranks wait: not the one that waits longest, but the one that it waits for,
 * or whom that one waits for in turn, until there is a rank that is silent, has left, or works. */
#include "device/watch.h"
#include <stdio.h>
#include <string.h>

void watch_describe(const struct watch_rank *rank, char *text, int size)
{
    char doing[128];
    switch (rank->state) {
    case WATCH_WAITS:
        if (rank->partner >= 0)
            snprintf(doing, sizeof doing, "waiting for rank %d in '%s'", rank->partner, rank->what);
        else
            snprintf(doing, sizeof doing, "waiting in '%s'", rank->what);
        break;
    case WATCH_LEFT:
        snprintf(doing, sizeof doing, "done with its part");
        break;
    case WATCH_WORKS:
        snprintf(doing, sizeof doing, "working");
        break;
    default:
        snprintf(doing, sizeof doing, "between two runs");
    }
    snprintf(text, (size_t)size, "%s%s%s", doing, rank->phase[0] ? ", phase: " : "", rank->phase);
}

/* One that has left its group waits for the others' end. */
static double waited_s(const struct watch_rank *rank, double now_s)
{
    bool waits = rank->state == WATCH_WAITS || rank->state == WATCH_LEFT;
    return waits ? rank->waited_s + (now_s - rank->heard_s) : 0;
}

/* The rank that has waited longest, one in a message before one that has left; -1 when none waits.
 */
static int longest_waiting(const struct watch_rank *ranks, int count, double now_s)
{
    int longest = -1;
    for (int r = 0; r < count; r++) {
        double seconds = waited_s(&ranks[r], now_s);
        bool more = longest < 0 || seconds > waited_s(&ranks[longest], now_s);
        bool alike = longest < 0 || ranks[r].state == ranks[longest].state;
        if (seconds > 0 && (alike ? more : ranks[r].state == WATCH_WAITS))
            longest = r;
    }
    return longest;
}

/* Whether `rank` holds up one that waits in `group`. */
static bool holds_up(const struct watch_rank *rank, int64_t group)
{
    return rank->group < group || (rank->group == group && rank->state == WATCH_WORKS);
}

/* Whom rank `from` waits for in the end: along the partners, else whoever does not wait; -1 when
 * they wait in a circle. */
static int find_cause(const struct watch_rank *ranks, int count, int from)
{
    int at = from;
    for (int step = 0; step < count && ranks[at].state == WATCH_WAITS; step++) {
        if (ranks[at].partner < 0 || ranks[at].partner >= count)
            break;
        at = ranks[at].partner;
        if (holds_up(&ranks[at], ranks[from].group))
            return at;
    }
    for (int r = 0; r < count; r++) {
        if (holds_up(&ranks[r], ranks[from].group))
            return r;
    }
    return -1;
}

static int most_silent(const struct watch_rank *ranks, int count)
{
    int most = 0;
    for (int r = 1; r < count; r++) {
        if (ranks[r].heard_s < ranks[most].heard_s)
            most = r;
    }
    return most;
}

static struct watch_finding find_stuck(
    const struct watch_rank *ranks, int count, int waiting, double seconds)
{
    struct watch_finding finding = {.verdict = WATCH_STUCK, .rank = waiting};
    char doing[256];
    int cause = find_cause(ranks, count, waiting);
    bool left = ranks[waiting].state == WATCH_LEFT;
    const char *what = left ? "the end" : ranks[waiting].what;
    if (cause >= 0) {
        watch_describe(&ranks[cause], doing, sizeof doing);
        finding.rank = cause;
        snprintf(finding.message, sizeof finding.message,
            "rank %d waited %.3g s for it in '%.48s'; last: %.120s", waiting, seconds, what, doing);
    } else if (left) {
        finding = (struct watch_finding){.verdict = WATCH_FINE, .rank = -1};
    } else {
        watch_describe(&ranks[waiting], doing, sizeof doing);
        snprintf(finding.message, sizeof finding.message,
            "waited %.3g s, and all others wait too; last: %.180s", seconds, doing);
    }
    return finding;
}

struct watch_finding watch_judge(
    const struct watch_rank *ranks, int count, double now_s, double timeout_s, double beat_s)
{
    struct watch_finding finding = {.verdict = WATCH_FINE, .rank = -1};
    char doing[256];
    int silent = most_silent(ranks, count), waiting = longest_waiting(ranks, count, now_s);
    double silent_s = now_s - ranks[silent].heard_s;
    if (silent_s > timeout_s && silent_s > 3 * beat_s) {
        watch_describe(&ranks[silent], doing, sizeof doing);
        finding = (struct watch_finding){.verdict = WATCH_SILENT, .rank = silent};
        snprintf(finding.message, sizeof finding.message,
            "was not heard of for %.3g s; last: %.180s", silent_s, doing);
        return finding;
    }
    for (int r = 0; r < count; r++) {
        int partner = ranks[r].state == WATCH_WAITS ? ranks[r].partner : -1;
        if (partner < 0 || partner >= count || ranks[partner].state != WATCH_LEFT ||
            ranks[partner].group != ranks[r].group || ranks[r].waited_s < 2 * beat_s ||
            ranks[partner].waited_s < 2 * beat_s)
            continue;
        finding = (struct watch_finding){.verdict = WATCH_GONE, .rank = partner};
        snprintf(finding.message, sizeof finding.message,
            "rank %d left while rank %d waits for it in '%s'", partner, r, ranks[r].what);
        return finding;
    }
    double seconds = waiting < 0 ? 0 : waited_s(&ranks[waiting], now_s);
    return seconds > timeout_s ? find_stuck(ranks, count, waiting, seconds) : finding;
}
