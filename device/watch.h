/* Finds the rank that a job is waiting for.
 *
 * Every rank tells the main process, every so often, what it is doing: the main process keeps what
 * it heard last and, when a rank has waited too long or has not been heard of, names the one at
 * fault. This part knows nothing of messages or clocks: it is given both. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum watch_state {
    WATCH_OUTSIDE, /* its process is between groups of ranks */
    WATCH_WORKS,   /* in a group, waiting for nobody */
    WATCH_WAITS,   /* for `partner`, in `what` */
    WATCH_LEFT     /* done with its group, whose end it waits for */
};

/* What a rank said last. */
struct watch_rank {
    double heard_s; /* when */
    enum watch_state state;
    int64_t group;   /* which group of ranks */
    int partner;     /* whom it waits for; -1: all */
    double waited_s; /* as of heard_s */
    char what[64];
    char phase[96]; /* of its process */
};

enum watch_verdict {
    WATCH_FINE,
    WATCH_SILENT, /* `rank` has not been heard of */
    WATCH_STUCK,  /* another rank has waited too long for `rank` */
    WATCH_GONE    /* another rank waits for `rank`, which has left */
};

struct watch_finding {
    enum watch_verdict verdict;
    int rank;
    char message[256]; /* without host names */
};

/* `timeout_s`: how long a rank may wait or be silent; `beat_s`: how often each is heard. A rank
 * that has left is found after two beats, since what it sent last may still be on its way. */
struct watch_finding watch_judge(
    const struct watch_rank *ranks, int count, double now_s, double timeout_s, double beat_s);

/* What rank r was doing: "waiting for rank 3 in 'all_to_all_v' (llep: measuring)". */
void watch_describe(const struct watch_rank *rank, char *text, int size);
