/* The vocabulary problem in FP64, and how far from it an FP32 result may lie.
 *
 * The bounds hold for every implementation under docs/ARITHMETIC.md, whatever order it declares,
 * and contain no tuned constant. They follow Higham (Accuracy and Stability of Numerical
 * Algorithms, chapter 3). Each rounding multiplies by 1 + d, |d| <= u, or, where the result is
 * denormal, adds at most 2^-150. FP32 has u = 2^-24 and BF16, with its 8 significant bits, u_b =
 * 2^-8 (2^-134 below its normal range). gamma(n) = n u / (1 - n u) bounds what n roundings do to
 * one term. A hat marks what the implementation has; sums of |x| |w| are formed here beside the
 * sums themselves.
 *
 * Logit. A chain of H fused operations rounds a term at most H times:
 *
 *     |y^ - y| <= e = gamma(H) sum |x| |w| + H 2^-149.
 *
 * Its partial sums lie between minus the sum of the negative terms and the sum of the positive
 * ones, (sum |x||w| -+ y) / 2. Where neither, widened by e, reaches the largest FP32, no step
 * overflows. Where only one does and the value lies beyond 2^128 by more than e, the chain ends at
 * that infinity. Else the logit is unknown, and with it the token. A token with a NaN or +inf logit
 * has loss and residuals NaN; so has one with nothing but -inf. Other -inf logits contribute
 * exactly 0.
 *
 * Normaliser. Write M^ for the maximum of y^. The term of column v is formed as exp(y^ - m), m the
 * maximum of its segment, and is carried along by factors exp(m - m') as the maximum grows. The
 * rounded differences add up, without cancellation, to D = M^ - y^_v, so their errors together
 * shift the exponent by at most u D. The other roundings: one of the exponential, 31 + 5 sums of
 * the lanes within a segment, and exponential, product and sum in each of at most (segments of a
 * shard - 1) + (P - 1) folds: K in all. The term is thus exp(y_v - M^) times a factor between
 * exp(-t) and exp(t),
 *
 *     t = e + u (D + K),   D <= max(y + e) - y_v + e,
 *
 * and with p = softmax(y), R = sum p exp(t), the normaliser's logarithm M^ + log z^ lies within
 * log R of log sum exp y: above by definition, below because sum p exp(-t) >= 1 / R
 * (Cauchy-Schwarz). Denormal terms add at most V K 2^-149 to a z^ that is at least 1, since the
 * largest term is exp(0): with eta = V K 2^-149 exp(max(y + e) - log sum exp y), at most 2 eta R
 * more. FP64's own sum of V exponentials may be off by V 2^-52. T is the sum of the three. Where T
 * exceeds 30 the token is unknown; below, eta R is far from 1, which the factor 2 relies on.
 *
 * Loss. (M^ - y^_t) + log z^ with three roundings; M^ - y^_t <= D_t, and
 * 0 <= log z^ <= l = log sum exp y - max(y - e) + T:
 *
 *     |loss^ - loss| <= b + u (|loss| + b),   b = T + e_t + u (D_t + l),
 *
 * unless it reaches beyond FP32's range, where it is unknown.
 *
 * Residual. The exponent (y^ - M^) - log z^ has three roundings and is never above 0:
 *
 *     its error   xi <= e + T + 2 u (D + l)
 *     p           E_p = min(1, p (exp(xi + u) - 1) + 2^-149)
 *     p - 1       E_d = E_p + u (|p - 1| + E_p), at the target; E_d = E_p elsewhere
 *     times s     E   = s E_d + u s (|d| + E_d) + 2^-149
 *     to BF16     E   + u_b (|r| + E) + 2^-134, in a BF16 problem
 *
 * with d = p - [v = t], and s the FP32 scale itself, which the contract states to the bit.
 *
 * Gradients. Cut into any segments, a sum of n residuals times weights (or inputs) rounds a term at
 * most n times in its chain and P times when segments are added:
 *
 *     |dX^ - dX| <= sum_v (E + gamma(V + P) (|r| + E)) |w| + (V + P) 2^-149,
 *
 * and u_b (|dX| + that) + 2^-134 more where dX is stored in BF16; dW likewise over all tokens. A
 * sum whose terms could reach the largest FP32 is unknown.
 *
 * FP64's other errors have the same form with 2^-53 for u, some of them twice. UNIT is u (1 +
 * 2^-20): the excess, 2^-44, pays for those, for what second-order terms of u the formulas above
 * drop, and for the rounding of the bounds themselves. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "reference/product.h"
#include "reference/vocab.h"

#define UNIT (0x1p-24 * (1.0 + 0x1p-20))
#define DENORMAL 0x1p-149
#define UNIT_BF16 0x1p-8
#define DENORMAL_BF16 0x1p-134

#define ERROR_MAX 30.0 /* of a normaliser's logarithm */

#define SEGMENT 1024
#define TOKEN_BLOCK 128
#define ROW_BLOCK 1024

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static double gamma_of(int64_t roundings)
{
    double nu = (double)roundings * UNIT;
    return nu < 1.0 ? nu / (1.0 - nu) : INFINITY;
}

/* exp(x + t) - exp(x) from above, for t >= 0: below 1, exp(t) - 1 <= t (1 + t). */
static double exp_excess(double x, double t)
{
    return t <= 1.0 ? exp(x) * t * (1.0 + t) : exp(x + t);
}

/* A problem at work. Of a block of tokens all logits are kept, since a residual needs the
 * normaliser; the rows of the vocabulary come in blocks, and `value` and `error` hold one [tokens,
 * rows] matrix per such block, one after the other. */
struct work {
    const struct ref_vocab_problem *problem;
    int64_t tokens; /* of all ranks */
    double scale;
    double term_roundings; /* K */
    bool any_unknown;
    double *value, *error;            /* [token block, V]: y and sum |x||w|, then r and E */
    double *row_value, *row_error;    /* [V]: one token's */
    double *x, *x_size;               /* [token block, H] and its absolute values */
    double *w, *w_size;               /* [row block, H] */
    double *w_turned, *w_turned_size; /* [H, row block] */
    double *factor, *factor_turned;   /* [token block, row block] and turned over */
    float *rows, *rows_turned;        /* as loaded */
    bool unknown[TOKEN_BLOCK];
};

/* ---- loading ----------------------------------------------------------------------------- */

static void widen(const float *from, double *to, double *size, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = from[i];
        size[i] = fabs(to[i]);
    }
}

static void load_tokens(struct work *k, int64_t first, int64_t count)
{
    const struct ref_vocab_problem *p = k->problem;
    ref_load_rows(p->dtype, p->x, NULL, first, count, p->hidden, k->rows);
    widen(k->rows, k->x, k->x_size, count * p->hidden);
}

static void load_vocabulary(struct work *k, int64_t first, int64_t count)
{
    const struct ref_vocab_problem *p = k->problem;
    ref_load_rows(p->dtype, p->w, NULL, first, count, p->hidden, k->rows);
    ref_transpose(k->rows, count, p->hidden, k->rows_turned);
    widen(k->rows, k->w, k->w_size, count * p->hidden);
    widen(k->rows_turned, k->w_turned, k->w_turned_size, count * p->hidden);
}

/* value = y and error = sum |x||w| for the tokens loaded and the whole vocabulary. */
static void form_logits(struct work *k, int64_t tokens)
{
    int64_t vocab = k->problem->vocab, hidden = k->problem->hidden;
    memset(k->value, 0, (size_t)(tokens * vocab) * sizeof *k->value);
    memset(k->error, 0, (size_t)(tokens * vocab) * sizeof *k->error);
    for (int64_t row = 0; row < vocab; row += ROW_BLOCK) {
        int64_t rows = min_i64(ROW_BLOCK, vocab - row);
        load_vocabulary(k, row, rows);
        ref_product_f64(k->x, k->w_turned, k->value + row * tokens, tokens, rows, hidden);
        ref_product_f64(k->x_size, k->w_turned_size, k->error + row * tokens, tokens, rows, hidden);
    }
}

/* One token's row out of a block-wise matrix, or back into it. */
static void take_row(const double *matrix, int64_t tokens, int64_t n, int64_t vocab, double *row)
{
    for (int64_t v = 0; v < vocab; v += ROW_BLOCK) {
        int64_t rows = min_i64(ROW_BLOCK, vocab - v);
        memcpy(row + v, matrix + v * tokens + n * rows, (size_t)rows * sizeof *row);
    }
}

static void put_row(double *matrix, int64_t tokens, int64_t n, int64_t vocab, const double *row)
{
    for (int64_t v = 0; v < vocab; v += ROW_BLOCK) {
        int64_t rows = min_i64(ROW_BLOCK, vocab - v);
        memcpy(matrix + v * tokens + n * rows, row + v, (size_t)rows * sizeof *row);
    }
}

/* ---- one token --------------------------------------------------------------------------- */

enum knowledge { KNOWN, UNKNOWN, IS_NAN };

/* Sum |x||w| becomes the logit's error, where all is finite; sure infinities become exact. */
static enum knowledge judge_logit(double *value, double *error, double gamma, double denormal)
{
    double y = *value, size = *error;
    double e = gamma * size + denormal;
    if (isnan(y))
        return IS_NAN;
    if (!isfinite(size) || !isfinite(e))
        return UNKNOWN;
    bool may_rise = (size + y) / 2.0 + e >= FLT_MAX, may_fall = (size - y) / 2.0 + e >= FLT_MAX;
    *error = e;
    if (!may_rise && !may_fall)
        return KNOWN;
    *error = 0.0;
    if (!may_rise && y < -0x1p128 - e) {
        *value = -INFINITY;
        return KNOWN;
    }
    return !may_fall && y > 0x1p128 + e ? IS_NAN : UNKNOWN;
}

static enum knowledge judge_row(const struct work *k, double *y, double *e)
{
    double gamma = gamma_of(k->problem->hidden);
    double denormal = (double)k->problem->hidden * DENORMAL;
    enum knowledge row = KNOWN;
    double max = -INFINITY;
    for (int64_t v = 0; v < k->problem->vocab; v++) {
        enum knowledge logit = judge_logit(&y[v], &e[v], gamma, denormal);
        if (logit == IS_NAN)
            return IS_NAN;
        if (logit == UNKNOWN)
            row = UNKNOWN;
        max = y[v] > max ? y[v] : max;
    }
    return row == KNOWN && max == -INFINITY ? IS_NAN : row;
}

/* What a token's softmax is made of; names as above. */
struct normaliser {
    double max;     /* of y */
    double highest; /* max(y + e) */
    double log_sum; /* log sum exp(y - max) */
    double error;   /* T */
    double log_z;   /* l */
};

static struct normaliser normalise(const struct work *k, const double *y, const double *e)
{
    int64_t vocab = k->problem->vocab;
    struct normaliser s = {.max = -INFINITY, .highest = -INFINITY};
    double lowest = -INFINITY, sum = 0.0, excess = 0.0;
    for (int64_t v = 0; v < vocab; v++) {
        s.max = fmax(s.max, y[v]);
        s.highest = fmax(s.highest, y[v] + e[v]);
        lowest = fmax(lowest, y[v] - e[v]);
    }
    for (int64_t v = 0; v < vocab; v++)
        sum += exp(y[v] - s.max);
    s.log_sum = log(sum);
    for (int64_t v = 0; v < vocab; v++) {
        if (y[v] == -INFINITY)
            continue;
        double distance = s.highest - y[v] + e[v];
        double t = e[v] + UNIT * (distance + k->term_roundings);
        excess += exp_excess((y[v] - s.max) - s.log_sum, t);
    }
    double eta =
        (double)vocab * k->term_roundings * DENORMAL * exp((s.highest - s.max) - s.log_sum);
    s.error = log1p(excess) + 2.0 * eta * (1.0 + excess) + (double)vocab * 0x1p-52;
    s.log_z = (s.max - lowest) + s.log_sum + s.error;
    return s;
}

static void form_loss(const struct normaliser *s, double y, double e, double *loss, double *bound)
{
    *loss = (s->max - y) + s->log_sum;
    *bound = 0.0;
    if (y == -INFINITY)
        return; /* +inf, exactly */
    double b = s->error + e + UNIT * ((s->highest - y + e) + s->log_z);
    b += UNIT * (fabs(*loss) + b);
    *bound = fabs(*loss) + b < FLT_MAX ? b : INFINITY;
}

/* y and e become r and E. */
static void form_residual(
    const struct work *k, const struct normaliser *s, int64_t target, double *y, double *e)
{
    for (int64_t v = 0; v < k->problem->vocab; v++) {
        double p = 0.0, error = 0.0;
        if (y[v] != -INFINITY) {
            double x = (y[v] - s->max) - s->log_sum, distance = s->highest - y[v] + e[v];
            double xi = e[v] + s->error + 2.0 * UNIT * (distance + s->log_z);
            p = exp(x);
            error = fmin(1.0, exp_excess(x, xi + UNIT) + DENORMAL);
        }
        double d = v == target ? p - 1.0 : p;
        if (v == target)
            error += UNIT * (fabs(d) + error);
        double r = d * k->scale;
        error = k->scale * error + UNIT * k->scale * (fabs(d) + error) + DENORMAL;
        if (k->problem->dtype == DTYPE_BF16)
            error += UNIT_BF16 * (fabs(r) + error) + DENORMAL_BF16;
        y[v] = r;
        e[v] = error;
    }
}

static void fill(double *values, int64_t count, double value)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = value;
}

/* The loss and the residuals of token `first + n`, the n-th of the block. A token of which nothing
 * is known is taken out of the sums: its residuals and its input become 0. */
static void form_token(
    struct work *k, int64_t first, int64_t n, int64_t tokens, struct ref_vocab_f64 *result)
{
    int64_t vocab = k->problem->vocab, hidden = k->problem->hidden;
    int64_t target = k->problem->targets[first + n];
    double *y = k->row_value, *e = k->row_error;
    double *loss = &result->loss[first + n], *bound = &result->loss_bound[first + n];
    enum knowledge known = KNOWN;
    take_row(k->value, tokens, n, vocab, y);
    take_row(k->error, tokens, n, vocab, e);
    *loss = *bound = 0.0;
    if (target == REF_VOCAB_IGNORED) {
        fill(y, vocab, 0.0);
        fill(e, vocab, 0.0);
    } else {
        known = judge_row(k, y, e);
    }
    if (known == KNOWN && target != REF_VOCAB_IGNORED) {
        struct normaliser s = normalise(k, y, e);
        form_loss(&s, y[target], e[target], loss, bound);
        form_residual(k, &s, target, y, e);
        if (!(s.error <= ERROR_MAX))
            known = UNKNOWN;
    }
    if (known != KNOWN) {
        *loss = known == IS_NAN ? NAN : 0.0;
        *bound = known == IS_NAN ? 0.0 : INFINITY;
        fill(y, vocab, known == IS_NAN ? NAN : 0.0);
        fill(e, vocab, 0.0);
    }
    k->unknown[n] = known == UNKNOWN;
    if (known == UNKNOWN) {
        k->any_unknown = true;
        fill(k->x + n * hidden, hidden, 0.0);
        fill(k->x_size + n * hidden, hidden, 0.0);
    }
    put_row(k->value, tokens, n, vocab, y);
    put_row(k->error, tokens, n, vocab, e);
}

/* ---- gradients --------------------------------------------------------------------------- */

/* out = E + gamma (|r| + E): what a term of a sum may be off by, per unit of its other factor. */
static void form_term_errors(
    const double *r, const double *e, int64_t count, double gamma, double *out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = isnan(r[i]) ? 0.0 : e[i] + gamma * (fabs(r[i]) + e[i]);
}

static void transpose_f64(const double *in, int64_t rows, int64_t columns, double *out)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            out[j * rows + i] = in[i * columns + j];
}

/* A block of tokens' part of all gradient sums and of their bounds. */
static void add_gradients(
    struct work *k, int64_t first, int64_t tokens, struct ref_vocab_f64 *result)
{
    const struct ref_vocab_problem *p = k->problem;
    int64_t hidden = p->hidden;
    double gamma_dx = gamma_of(p->vocab + p->ranks), gamma_dw = gamma_of(k->tokens + p->ranks);
    double *dx = result->dx + first * hidden, *dx_bound = result->dx_bound + first * hidden;
    for (int64_t row = 0; row < p->vocab; row += ROW_BLOCK) {
        int64_t rows = min_i64(ROW_BLOCK, p->vocab - row);
        const double *r = k->value + row * tokens, *e = k->error + row * tokens;
        double *dw = result->dw + row * hidden, *dw_bound = result->dw_bound + row * hidden;
        load_vocabulary(k, row, rows);
        ref_product_f64(r, k->w, dx, tokens, hidden, rows);
        form_term_errors(r, e, tokens * rows, gamma_dx, k->factor);
        ref_product_f64(k->factor, k->w_size, dx_bound, tokens, hidden, rows);
        for (int64_t n = 0; n < tokens; n++)
            if (k->unknown[n])
                fill(dx_bound + n * hidden, hidden, INFINITY);

        transpose_f64(r, tokens, rows, k->factor_turned);
        ref_product_f64(k->factor_turned, k->x, dw, rows, hidden, tokens);
        form_term_errors(r, e, tokens * rows, gamma_dw, k->factor);
        transpose_f64(k->factor, tokens, rows, k->factor_turned);
        ref_product_f64(k->factor_turned, k->x_size, dw_bound, rows, hidden, tokens);
    }
}

/* Completes the bound of a sum of `terms` products that was cut into at most P segments. Where the
 * terms may exceed FP32's range (gamma times their sum is in the bound) nothing is known. */
static void finish_bounds(const struct work *k, const double *sum, double *bound, int64_t count,
    int64_t terms, bool stored_bf16)
{
    int64_t roundings = terms + k->problem->ranks;
    double largest = gamma_of(roundings) * (double)FLT_MAX / 4.0;
    for (int64_t i = 0; i < count; i++) {
        if (isnan(sum[i]))
            continue;
        double b = bound[i] + (double)roundings * DENORMAL;
        if (stored_bf16)
            b += UNIT_BF16 * (fabs(sum[i]) + b) + DENORMAL_BF16;
        bound[i] = bound[i] < largest ? b : INFINITY;
    }
}

static void finish_gradients(const struct work *k, struct ref_vocab_f64 *result)
{
    const struct ref_vocab_problem *p = k->problem;
    finish_bounds(
        k, result->dx, result->dx_bound, k->tokens * p->hidden, p->vocab, p->dtype == DTYPE_BF16);
    finish_bounds(k, result->dw, result->dw_bound, p->vocab * p->hidden, k->tokens, false);
    if (!k->any_unknown)
        return;
    for (int64_t i = 0; i < p->vocab * p->hidden; i++)
        if (!isnan(result->dw[i]))
            result->dw_bound[i] = INFINITY;
}

/* ---- beginning and end ------------------------------------------------------------------- */

static void work_end(struct work *k)
{
    free(k->value);
    free(k->error);
    free(k->row_value);
    free(k->row_error);
    free(k->x);
    free(k->x_size);
    free(k->w);
    free(k->w_size);
    free(k->w_turned);
    free(k->w_turned_size);
    free(k->factor);
    free(k->factor_turned);
    free(k->rows);
    free(k->rows_turned);
}

static double *room(int64_t rows, int64_t columns)
{
    return malloc((size_t)rows * (size_t)columns * sizeof(double));
}

/* 0, or -1 when memory is short; work_end either way. */
static int work_begin(struct work *k, const struct ref_vocab_problem *p, int64_t valid)
{
    int64_t hidden = p->hidden, vocab = p->vocab;
    int64_t shard_rows = (vocab + p->ranks - 1) / p->ranks;
    int64_t segments = (shard_rows + SEGMENT - 1) / SEGMENT;
    int64_t block = ROW_BLOCK > TOKEN_BLOCK ? ROW_BLOCK : TOKEN_BLOCK;
    *k = (struct work){
        .problem = p,
        .scale = valid ? (double)(float)(1.0 / (double)valid) : 0.0,
        .term_roundings = 37.0 + 3.0 * (double)(segments - 1 + p->ranks - 1),
        .value = room(TOKEN_BLOCK, vocab),
        .error = room(TOKEN_BLOCK, vocab),
        .row_value = room(1, vocab),
        .row_error = room(1, vocab),
        .x = room(TOKEN_BLOCK, hidden),
        .x_size = room(TOKEN_BLOCK, hidden),
        .w = room(ROW_BLOCK, hidden),
        .w_size = room(ROW_BLOCK, hidden),
        .w_turned = room(ROW_BLOCK, hidden),
        .w_turned_size = room(ROW_BLOCK, hidden),
        .factor = room(TOKEN_BLOCK, ROW_BLOCK),
        .factor_turned = room(TOKEN_BLOCK, ROW_BLOCK),
        .rows = malloc((size_t)block * (size_t)hidden * sizeof(float)),
        .rows_turned = malloc((size_t)block * (size_t)hidden * sizeof(float)),
    };
    for (int r = 0; r < p->ranks; r++)
        k->tokens += p->tokens[r];
    bool all = k->value && k->error && k->row_value && k->row_error && k->x && k->x_size && k->w &&
               k->w_size && k->w_turned && k->w_turned_size && k->factor && k->factor_turned &&
               k->rows && k->rows_turned;
    return all ? 0 : -1;
}

int ref_vocab_f64(
    const struct ref_vocab_problem *problem, struct ref_vocab_f64 *result, char *error, int size)
{
    int64_t valid = ref_vocab_check(problem, error, size);
    if (valid < 0)
        return -1;
    struct work k;
    if (work_begin(&k, problem, valid)) {
        snprintf(error, (size_t)size, "no memory for the FP64 reference's strips");
        work_end(&k);
        return -1;
    }
    if (result->dx) {
        fill(result->dx, k.tokens * problem->hidden, 0.0);
        fill(result->dx_bound, k.tokens * problem->hidden, 0.0);
        fill(result->dw, problem->vocab * problem->hidden, 0.0);
        fill(result->dw_bound, problem->vocab * problem->hidden, 0.0);
    }
    for (int64_t first = 0; first < k.tokens; first += TOKEN_BLOCK) {
        int64_t tokens = min_i64(TOKEN_BLOCK, k.tokens - first);
        load_tokens(&k, first, tokens);
        form_logits(&k, tokens);
        for (int64_t n = 0; n < tokens; n++)
            form_token(&k, first, n, tokens, result);
        if (result->dx)
            add_gradients(&k, first, tokens, result);
    }
    if (result->dx)
        finish_gradients(&k, result);
    work_end(&k);
    return 0;
}
