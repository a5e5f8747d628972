/* What one case gave: a plain struct that a program fills and a report prints and records.
 *
 * case_result_init() makes everything absent; a program sets what applies. What stays absent is
 * absent from the line and from the record, never 0. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>
#include "device/comm.h"
#include "probe/digest.h"
#include "probe/memory.h"
#include "probe/timing.h"

#define ABSENT INT64_C(-1) /* of bytes and counts */

enum case_status { CASE_OK, CASE_OOM, CASE_ERROR, CASE_SKIPPED };

/* From the strongest; of several tensors the last in this list decides. */
enum verdict {
    VERDICT_BITWISE,
    VERDICT_EXACT_INPUT,
    VERDICT_BOUNDED,
    VERDICT_OFF,
    VERDICT_SIMULATED, /* there were no values to compare */
    VERDICT_MISMATCH
};

#define CASE_TENSORS_MAX 12
#define CASE_COUNTS_MAX 16
#define CASE_FAULT_MAX 256
#define CASE_FIGURES_MAX 8

struct case_tensor {
    const char *name; /* "dx" */
    enum verdict verdict;
    bool declared_order; /* compared in the declared order, not in the default one */
    bool has_ulp;        /* distance from the default order's result */
    int64_t ulp_max;
    double ulp_mean;
    char digest[DIGEST_TEXT]; /* "" = absent */
    bool by_row; /* an element is one row's and no sum is cut: all schedules give the same bits */
    enum verdict exact_verdict;     /* of a fast path's outputs (products.h): the exact ones' */
    char exact_digest[DIGEST_TEXT]; /* "" = absent, with what follows */
    double distance;                /* |fast - exact| / |exact| */
    char fault[CASE_FAULT_MAX];     /* of a mismatch: check_describe's line */
};

/* The audited products of the fast path (kernels/gemm_fast.h, whose tally this is). */
struct case_products {
    bool present;
    int64_t library, own, odd, exact;
    int64_t elements, outside;
    double worst;
    bool inside; /* on every process */
};

/* The memory of one rank in one window: the whole timed pass, or one half of it. */
struct case_window {
    bool present;
    struct mem_window peak;
    int64_t expected_bytes; /* peak over resident that the closed form gives, to the byte */
    int64_t bound_bytes;    /* peak over resident that it must not pass */
    int64_t expected_set_bytes[LIVE_SET_COUNT]; /* each live set's own peak over resident */
};

enum case_window_kind { WINDOW_PASS, WINDOW_FORWARD, WINDOW_BACKWARD, WINDOW_COUNT };

struct case_rank {
    double time_s;                              /* median of its own repetitions; NaN */
    int64_t resident_bytes;                     /* inputs and weights, before the schedule runs */
    int64_t resident_set_bytes[LIVE_SET_COUNT]; /* of which */
    int64_t host_pinned_peak_bytes;
    int64_t driver_bytes; /* dev_driver_bytes after the observed pass */
    int64_t routes;       /* received, of dispatch */
    struct case_window windows[WINDOW_COUNT];
};

struct case_count {
    const char *name; /* "gemm_calls" */
    int64_t value;
};

/* A figure of the family's own: a column of the table, `figures` of the record. */
struct case_figure {
    double value;  /* NaN = absent */
    char text[16]; /* as printed; "" = absent */
};

struct case_result {
    enum case_status status;
    char reason[CASE_FAULT_MAX + 64]; /* unless ok */
    char note[2 * CASE_FAULT_MAX];    /* a line under the case; "" = none */

    char against[64]; /* case_check_text; "" = off */
    struct case_tensor tensors[CASE_TENSORS_MAX];
    int tensor_count;
    struct case_products products;

    struct timing time; /* the slowest rank's samples; count 0 = not timed */
    bool simulated;
    int machines; /* that a simulated case ran on (bench/harness/simulate.h) */
    double machine_s[DEV_MACHINES_MAX]; /* its time on each */

    double work;              /* of one repetition in `work_unit`s; NaN */
    const char *work_unit;    /* "FLOP": throughput is in FLOP/s */
    const char *work_formula; /* "6 N V H" */

    struct case_rank *ranks;
    int rank_count;
    double *rank_samples_s; /* [rank_count][rank_sample_count], of processes; owned; NULL = none */
    int rank_sample_count;

    int64_t rss_peak_bytes;
    bool has_traffic;
    struct comm_traffic traffic; /* of one repetition, all ranks together */
    const char *carrier;         /* of its messages: comm_carrier */
    struct case_count counts[CASE_COUNTS_MAX];
    int count_count;
    struct case_figure figures[CASE_FIGURES_MAX]; /* in the order of program->figures */
    json_t *plan;                                 /* owned; NULL = none */
    json_t *search;                               /* owned: what --search found; NULL = none */
};

/* 0, or -1 when memory is short. */
int case_result_init(struct case_result *result, int ranks);
void case_result_free(struct case_result *result);

/* A new tensor of the check, or NULL when CASE_TENSORS_MAX are there. */
struct case_tensor *case_result_tensor(struct case_result *result, const char *name);
void case_result_figure(struct case_result *result, int index, double value, const char *text);
void case_result_count(struct case_result *result, const char *name, int64_t value);

/* Takes over why ranks_run failed: status, and the message as the reason. */
void case_result_fail(struct case_result *result, const struct ranks_failure *failure);
void case_result_skip(struct case_result *result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Keeps what is live now as resident, and its live sets. */
void case_rank_resident(struct case_rank *rank, const struct mem_probe *probe);
/* Keeps the probe's window. */
void case_rank_window(
    struct case_rank *rank, enum case_window_kind kind, const struct mem_probe *probe);

/* Collective: sums every rank's traffic into the result, with what carried it. 0, or -1 after an
 * abort. */
int case_result_traffic(
    struct case_result *result, const struct rank *rank, const struct comm_traffic *own);

/* ---- derived -------------------------------------------------------------------------------- */
const char *case_status_name(enum case_status status);
const char *verdict_name(enum verdict verdict);           /* "bitwise", ... */
const char *case_window_name(enum case_window_kind kind); /* "pass", "forward", "backward" */

/* The weakest verdict of the tensors that were compared; off or simulated when none was. */
enum verdict case_verdict(const struct case_result *result);

/* The rank with the highest peak in a window, the slowest rank; -1 when there is none. */
int case_fullest_rank(const struct case_result *result, enum case_window_kind kind);
int case_slowest_rank(const struct case_result *result);

/* Peak over resident of one rank's window. */
int64_t case_increment_bytes(
    const struct case_result *result, int rank, enum case_window_kind kind);

/* The largest share increment / bound over ranks and windows; NaN when there is no bound. */
double case_bound_share(const struct case_result *result);

/* Writes how the memory of some rank breaks its bound or differs from its closed form; false when
 * it holds everywhere. */
bool case_memory_fault(const struct case_result *result, char *text, int size);
