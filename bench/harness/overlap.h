/* How much of what could run at the same time did: read from a trace. */
#pragma once
#include "probe/trace.h"

/* The three stages of a bucket's or a boundary's way through the device. */
enum overlap_stage { OVERLAP_UP, OVERLAP_COMPUTE, OVERLAP_DOWN, OVERLAP_STAGES };

struct overlap {
    double busy_s[OVERLAP_STAGES]; /* time in which some span of the stage ran: copies h2d, kernels,
                                      d2h */
    double union_s;                /* time in which any of them ran */
    double elapsed_s;              /* from the first begin to the last end */
    /* (sum of busy - union) / (sum of busy - longest busy): 0 when the stages took turns, 1 when
     * all but the longest were hidden behind it; NaN when there is one stage alone. */
    double fraction;
};

/* What copies cost a rank: of the time in which a copy to or from the host ran (several at once
 * count once), how much was behind a kernel, and how much was exposed. NaN where spans were lost or
 * memory is short. */
struct copy_time {
    double busy_s, hidden_s, exposed_s;
};
struct copy_time overlap_copies(const struct trace *trace, int rank);

/* Of one rank's spans; `kernel` names the kernel that computes (NULL = every kernel does). 0, or -1
 * when memory is short. Where spans were lost (trace_lost) every figure is NaN. */
int overlap_measure(
    const struct trace *trace, int rank, const char *kernel, struct overlap *overlap);
