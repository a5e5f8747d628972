/* The vocabulary problem by its definition (ops/vocab.h, docs/ARITHMETIC.md rules 3, 6, 7, 10, 12).
 *
 * Nothing of size tokens x vocabulary is kept. The problem is met strip by strip: a block of tokens
 * by a block of vocabulary rows, its logits formed afresh whenever they are needed (once for the
 * loss, once for dX, once for dW), which costs a factor 5/3 in products and lets each of the three
 * passes be read by itself and run its sums in whatever order was declared.
 *
 * The full result and a sample of it are the same code over different selections of tokens and
 * vocabulary rows: no element of the result depends on which others are formed. */
#include "reference/vocab.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "reference/product.h"

#define SEGMENT 1024 /* columns of one softmax state, from the shard's start (rule 7) */
#define TOKEN_BLOCK 512
#define ROW_BLOCK SEGMENT

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- selections -------------------------------------------------------------------------- */

/* Tokens or vocabulary rows, ascending: all of them, or those listed; rank r's part (its batch or
 * its shard) is positions part[r] .. part[r + 1) - 1. */
struct selection {
    const int64_t *list; /* the global index at each position; NULL: the position itself */
    int64_t *part;       /* [ranks + 1] */
};

static int64_t selection_index(const struct selection *s, int64_t position)
{
    return s->list ? s->list[position] : position;
}

/* Where among positions first .. first + count - 1 the global index stands; -1: not there. */
static int64_t selection_find(
    const struct selection *s, int64_t first, int64_t count, int64_t index)
{
    if (!s->list)
        return index >= first && index < first + count ? index - first : -1;
    for (int64_t i = 0; i < count; i++)
        if (s->list[first + i] == index)
            return i;
    return -1;
}

/* part[r]: the tokens before batch r. */
static void count_tokens_before(const struct ref_vocab_problem *problem, int64_t *part)
{
    part[0] = 0;
    for (int r = 0; r < problem->ranks; r++)
        part[r + 1] = part[r] + problem->tokens[r];
}

/* part[r]: the vocabulary rows before shard r; the first vocab mod ranks shards hold one more. */
static void count_rows_before(const struct ref_vocab_problem *problem, int64_t *part)
{
    int64_t each = problem->vocab / problem->ranks, leftover = problem->vocab % problem->ranks;
    for (int r = 0; r <= problem->ranks; r++)
        part[r] = r * each + min_i64(r, leftover);
}

/* Turns the boundaries of the whole into those of a list: part[r] becomes the number of listed
 * indices below it. */
static void restrict_to_list(struct selection *s, int ranks, const int64_t *list, int64_t count)
{
    int64_t position = 0;
    for (int r = 0; r <= ranks; r++) {
        while (position < count && list[position] < s->part[r])
            position++;
        s->part[r] = position;
    }
    s->list = list;
}

/* ---- one strip --------------------------------------------------------------------------- */

/* A problem at work: its selections, and room for one strip. */
struct work {
    const struct ref_vocab_problem *problem;
    struct selection tokens, rows;
    float scale;
    float *x;            /* [token block, H] */
    float *w, *w_turned; /* [row block, H] and [H, row block] */
    float *strip;        /* [token block, row block]: logits, then residuals */
    float *strip_turned; /* [row block, token block] */
    float *segment_sum;  /* the chain of the segment at hand */
    float *sum;          /* the segments before it */
};

static void load_tokens(struct work *k, int64_t first, int64_t count)
{
    ref_load_rows(
        k->problem->dtype, k->problem->x, k->tokens.list, first, count, k->problem->hidden, k->x);
}

static void load_vocabulary(struct work *k, int64_t first, int64_t count)
{
    ref_load_rows(
        k->problem->dtype, k->problem->w, k->rows.list, first, count, k->problem->hidden, k->w);
    ref_transpose(k->w, count, k->problem->hidden, k->w_turned);
}

/* strip[n, v] = chain over h of x[n, h] * w[v, h], of what was loaded. */
static void form_logits(struct work *k, int64_t tokens, int64_t rows)
{
    memset(k->strip, 0, (size_t)(tokens * rows) * sizeof *k->strip);
    ref_product(k->x, k->w_turned, k->strip, tokens, rows, k->problem->hidden);
}

/* One token's logits become its residuals. */
static void form_residual_row(const struct work *k, float *row, int64_t first_row, int64_t rows,
    int64_t target, float max, float log_z)
{
    if (target == REF_VOCAB_IGNORED) {
        memset(row, 0, (size_t)rows * sizeof *row);
        return;
    }
    for (int64_t v = 0; v < rows; v++)
        row[v] = arith_exp((row[v] - max) - log_z);
    int64_t column = selection_find(&k->rows, first_row, rows, target);
    if (column >= 0)
        row[column] = row[column] - 1.0f;
    for (int64_t v = 0; v < rows; v++)
        row[v] = row[v] * k->scale;
    if (k->problem->dtype == DTYPE_BF16)
        for (int64_t v = 0; v < rows; v++)
            row[v] = bf16_to_f32(f32_to_bf16(row[v]));
}

/* strip = residuals of the tokens and rows loaded. `max` and `log_z` go by token position. */
static void form_residuals(struct work *k, int64_t first_token, int64_t tokens, int64_t first_row,
    int64_t rows, const float *max, const float *log_z)
{
    form_logits(k, tokens, rows);
    for (int64_t n = 0; n < tokens; n++) {
        int64_t position = first_token + n;
        int64_t target = k->problem->targets[selection_index(&k->tokens, position)];
        form_residual_row(
            k, k->strip + n * rows, first_row, rows, target, max[position], log_z[position]);
    }
}

/* ---- the loss ---------------------------------------------------------------------------- */

/* Softmax states and target logits of a block of tokens. */
struct token_states {
    struct softmax_state shard[TOKEN_BLOCK], whole[TOKEN_BLOCK];
    float target_logit[TOKEN_BLOCK];
};

/* Folds one segment's logits into the shard's states, and picks up the targets' logits. */
static void fold_segment(struct work *k, struct token_states *states, int64_t first_token,
    int64_t tokens, int64_t first_row, int64_t rows)
{
    form_logits(k, tokens, rows);
    for (int64_t n = 0; n < tokens; n++) {
        const float *row = k->strip + n * rows;
        states->shard[n] = softmax_fold(states->shard[n], softmax_segment(row, rows));
        int64_t token = selection_index(&k->tokens, first_token + n);
        int64_t column = selection_find(&k->rows, first_row, rows, k->problem->targets[token]);
        if (column >= 0)
            states->target_logit[n] = row[column];
    }
}

/* max, log_z and loss of a block of tokens, against every shard. */
static void forward_block(struct work *k, struct token_states *states, int64_t first_token,
    int64_t tokens, struct ref_vocab_result *result)
{
    load_tokens(k, first_token, tokens);
    for (int64_t n = 0; n < tokens; n++)
        states->whole[n] = softmax_empty();
    for (int s = 0; s < k->problem->ranks; s++) {
        int64_t end = k->rows.part[s + 1];
        for (int64_t n = 0; n < tokens; n++)
            states->shard[n] = softmax_empty();
        for (int64_t row = k->rows.part[s]; row < end; row += SEGMENT) {
            int64_t rows = min_i64(SEGMENT, end - row);
            load_vocabulary(k, row, rows);
            fold_segment(k, states, first_token, tokens, row, rows);
        }
        for (int64_t n = 0; n < tokens; n++)
            states->whole[n] = softmax_fold(states->whole[n], states->shard[n]);
    }
    for (int64_t n = 0; n < tokens; n++) {
        int64_t position = first_token + n, token = selection_index(&k->tokens, position);
        float max = states->whole[n].max, log_z = arith_log(states->whole[n].sum);
        bool ignored = k->problem->targets[token] == REF_VOCAB_IGNORED;
        result->max[position] = max;
        result->log_z[position] = log_z;
        result->loss[position] = ignored ? 0.0f : (max - states->target_logit[n]) + log_z;
    }
}

/* Every selected token. 0, or -1 with `error` when memory is short. */
static int forward(struct work *k, struct ref_vocab_result *result, char *error, int size)
{
    struct token_states *states = malloc(sizeof *states);
    if (!states) {
        snprintf(error, (size_t)size, "no memory for the reference's states");
        return -1;
    }
    int64_t end = k->tokens.part[k->problem->ranks];
    for (int64_t first = 0; first < end; first += TOKEN_BLOCK)
        forward_block(k, states, first, min_i64(TOKEN_BLOCK, end - first), result);
    free(states);
    return 0;
}

/* ---- sums in a declared order ------------------------------------------------------------ */

/* Adds the finished segment to the sum; the first one is taken as it is. */
static void close_segment(struct work *k, bool first, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        k->sum[i] = first ? k->segment_sum[i] : k->sum[i] + k->segment_sum[i];
}

/* Before the part at `position` of its list is met: where it starts a segment, the one before is
 * closed and a new chain begins from +0. Returns how many have been closed. */
static int enter_part(
    struct work *k, const struct vocab_part *list, int position, int closed, int64_t count)
{
    if (!list[position].starts)
        return closed;
    if (position > 0)
        close_segment(k, closed++ == 0, count);
    memset(k->segment_sum, 0, (size_t)count * sizeof *k->segment_sum);
    return closed;
}

/* ---- the gradients ----------------------------------------------------------------------- */

/* dX of a block of tokens of one batch: the residuals' rows times W, shards as listed. */
static void input_gradient_block(struct work *k, const struct vocab_part *list, int64_t first_token,
    int64_t tokens, struct ref_vocab_result *result)
{
    int64_t hidden = k->problem->hidden, count = tokens * hidden;
    int closed = 0;
    load_tokens(k, first_token, tokens);
    for (int position = 0; position < k->problem->ranks; position++) {
        int shard = list[position].part;
        int64_t end = k->rows.part[shard + 1];
        closed = enter_part(k, list, position, closed, count);
        for (int64_t row = k->rows.part[shard]; row < end; row += ROW_BLOCK) {
            int64_t rows = min_i64(ROW_BLOCK, end - row);
            load_vocabulary(k, row, rows);
            form_residuals(k, first_token, tokens, row, rows, result->max, result->log_z);
            ref_product(k->strip, k->w, k->segment_sum, tokens, hidden, rows);
        }
    }
    close_segment(k, closed == 0, count);
    if (k->problem->dtype == DTYPE_F32) {
        memcpy((float *)result->dx + first_token * hidden, k->sum, (size_t)count * sizeof *k->sum);
        return;
    }
    uint16_t *dx = (uint16_t *)result->dx + first_token * hidden;
    for (int64_t i = 0; i < count; i++)
        dx[i] = f32_to_bf16(k->sum[i]);
}

static void input_gradient(
    struct work *k, const struct vocab_order *order, struct ref_vocab_result *result)
{
    int ranks = k->problem->ranks;
    for (int batch = 0; batch < ranks; batch++) {
        int64_t end = k->tokens.part[batch + 1];
        for (int64_t first = k->tokens.part[batch]; first < end; first += TOKEN_BLOCK)
            input_gradient_block(k, order->dx + (int64_t)batch * ranks, first,
                min_i64(TOKEN_BLOCK, end - first), result);
    }
}

/* dW of a block of rows of one shard: the residuals' columns times X, batches as listed. */
static void weight_gradient_block(struct work *k, const struct vocab_part *list, int64_t first_row,
    int64_t rows, const float *max, const float *log_z, float *dw)
{
    int64_t hidden = k->problem->hidden, count = rows * hidden;
    int closed = 0;
    load_vocabulary(k, first_row, rows);
    for (int position = 0; position < k->problem->ranks; position++) {
        int batch = list[position].part;
        int64_t end = k->tokens.part[batch + 1];
        closed = enter_part(k, list, position, closed, count);
        for (int64_t token = k->tokens.part[batch]; token < end; token += TOKEN_BLOCK) {
            int64_t tokens = min_i64(TOKEN_BLOCK, end - token);
            load_tokens(k, token, tokens);
            form_residuals(k, token, tokens, first_row, rows, max, log_z);
            ref_transpose(k->strip, tokens, rows, k->strip_turned);
            ref_product(k->strip_turned, k->x, k->segment_sum, rows, hidden, tokens);
        }
    }
    close_segment(k, closed == 0, count);
    memcpy(dw + first_row * hidden, k->sum, (size_t)count * sizeof *dw);
}

static void weight_gradient(struct work *k, const struct vocab_order *order, const float *max,
    const float *log_z, float *dw)
{
    int ranks = k->problem->ranks;
    for (int shard = 0; shard < ranks; shard++) {
        int64_t end = k->rows.part[shard + 1];
        for (int64_t first = k->rows.part[shard]; first < end; first += ROW_BLOCK)
            weight_gradient_block(k, order->dw + (int64_t)shard * ranks, first,
                min_i64(ROW_BLOCK, end - first), max, log_z, dw);
    }
}

/* ---- beginning and end ------------------------------------------------------------------- */

static void work_end(struct work *k)
{
    free(k->tokens.part);
    free(k->rows.part);
    free(k->x);
    free(k->w);
    free(k->w_turned);
    free(k->strip);
    free(k->strip_turned);
    free(k->segment_sum);
    free(k->sum);
}

/* Selects everything. 0, or -1 with `error` when memory is short; work_end either way. */
static int work_begin(
    struct work *k, const struct ref_vocab_problem *problem, int64_t valid, char *error, int size)
{
    size_t parts = (size_t)problem->ranks + 1, hidden = (size_t)problem->hidden;
    *k = (struct work){
        .problem = problem,
        .scale = valid ? (float)(1.0 / (double)valid) : 0.0f,
        .tokens.part = malloc(parts * sizeof(int64_t)),
        .rows.part = malloc(parts * sizeof(int64_t)),
        .x = malloc(TOKEN_BLOCK * hidden * sizeof(float)),
        .w = malloc(ROW_BLOCK * hidden * sizeof(float)),
        .w_turned = malloc(ROW_BLOCK * hidden * sizeof(float)),
        .strip = malloc(TOKEN_BLOCK * ROW_BLOCK * sizeof(float)),
        .strip_turned = malloc(TOKEN_BLOCK * ROW_BLOCK * sizeof(float)),
        .segment_sum = malloc(ROW_BLOCK * hidden * sizeof(float)),
        .sum = malloc(ROW_BLOCK * hidden * sizeof(float)),
    };
    if (!k->tokens.part || !k->rows.part || !k->x || !k->w || !k->w_turned || !k->strip ||
        !k->strip_turned || !k->segment_sum || !k->sum) {
        snprintf(error, (size_t)size, "no memory for the reference's strips");
        return -1;
    }
    count_tokens_before(problem, k->tokens.part);
    count_rows_before(problem, k->rows.part);
    return 0;
}

int64_t ref_vocab_check(const struct ref_vocab_problem *problem, char *error, int size)
{
    int64_t tokens = 0, valid = 0;
    if (problem->ranks < 1 || problem->ranks > VOCAB_RANKS_MAX || problem->hidden < 1 ||
        problem->vocab < 1) {
        snprintf(error, (size_t)size,
            "%d ranks, hidden %lld, vocabulary %lld: allowed 1..%d ranks, sizes of at least 1",
            problem->ranks, (long long)problem->hidden, (long long)problem->vocab, VOCAB_RANKS_MAX);
        return -1;
    }
    for (int r = 0; r < problem->ranks; r++) {
        if (problem->tokens[r] < 0) {
            snprintf(error, (size_t)size, "rank %d has %lld tokens, allowed 0 and more", r,
                (long long)problem->tokens[r]);
            return -1;
        }
        tokens += problem->tokens[r];
    }
    for (int64_t n = 0; n < tokens; n++) {
        int64_t target = problem->targets[n];
        if (target != REF_VOCAB_IGNORED && (target < 0 || target >= problem->vocab)) {
            snprintf(error, (size_t)size,
                "target of token %lld is %lld, allowed 0..%lld or %d (ignored)", (long long)n,
                (long long)target, (long long)problem->vocab - 1, REF_VOCAB_IGNORED);
            return -1;
        }
        valid += target != REF_VOCAB_IGNORED;
    }
    return valid;
}

/* The declared order once it is known to cover the problem, or the default one (made in `room`).
 * NULL with `error` otherwise. */
static const struct vocab_order *take_order(const struct ref_vocab_problem *problem,
    const struct vocab_order *declared, struct vocab_order *room, char *error, int size)
{
    if (!declared) {
        if (!vocab_order_init(room, problem->ranks))
            return room;
        snprintf(error, (size_t)size, "no memory for an order over %d ranks", problem->ranks);
        return NULL;
    }
    if (declared->ranks != problem->ranks) {
        snprintf(error, (size_t)size, "an order over %d ranks for a problem of %d", declared->ranks,
            problem->ranks);
        return NULL;
    }
    return vocab_order_check(declared, error, size) ? NULL : declared;
}

/* ---- public ------------------------------------------------------------------------------ */

/* The mean over valid tokens, ascending. */
static double mean_loss(
    const struct ref_vocab_problem *problem, const float *loss, int64_t tokens, int64_t valid)
{
    double sum = 0.0;
    for (int64_t n = 0; n < tokens; n++)
        if (problem->targets[n] != REF_VOCAB_IGNORED)
            sum = sum + (double)loss[n];
    return valid ? sum / (double)valid : 0.0;
}

enum { LOSS = 1, GRADIENTS = 2 };

static int run(const struct ref_vocab_problem *problem, const struct vocab_order *order, int wanted,
    struct ref_vocab_result *result, char *error, int size)
{
    int64_t valid = ref_vocab_check(problem, error, size);
    if (valid < 0)
        return -1;
    struct vocab_order room = {0};
    const struct vocab_order *taken = take_order(problem, order, &room, error, size);
    if (!taken)
        return -1;
    struct work k;
    int status = work_begin(&k, problem, valid, error, size);
    if (!status && (wanted & LOSS)) {
        status = forward(&k, result, error, size);
        result->valid = valid;
        if (!status)
            result->mean = mean_loss(problem, result->loss, k.tokens.part[problem->ranks], valid);
    }
    if (!status && (wanted & GRADIENTS) && result->dx)
        input_gradient(&k, taken, result);
    if (!status && (wanted & GRADIENTS) && result->dw)
        weight_gradient(&k, taken, result->max, result->log_z, result->dw);
    work_end(&k);
    vocab_order_free(&room);
    return status;
}

int ref_vocab(const struct ref_vocab_problem *problem, const struct vocab_order *order,
    struct ref_vocab_result *result, char *error, int size)
{
    return run(problem, order, LOSS | GRADIENTS, result, error, size);
}

int ref_vocab_forward(
    const struct ref_vocab_problem *problem, struct ref_vocab_result *result, char *error, int size)
{
    return run(problem, NULL, LOSS, result, error, size);
}

int ref_vocab_gradients(const struct ref_vocab_problem *problem, const struct vocab_order *order,
    struct ref_vocab_result *result, char *error, int size)
{
    return run(problem, order, GRADIENTS, result, error, size);
}

/* Listed indices must ascend within [0, end). */
static int check_list(
    const char *what, const int64_t *list, int64_t count, int64_t end, char *error, int size)
{
    for (int64_t i = 0; i < count; i++)
        if (list[i] < 0 || list[i] >= end || (i && list[i] <= list[i - 1])) {
            snprintf(error, (size_t)size,
                "sampled %s at position %lld is %lld, allowed ascending in 0..%lld", what,
                (long long)i, (long long)list[i], (long long)end - 1);
            return -1;
        }
    return 0;
}

int ref_vocab_sampled(const struct ref_vocab_problem *problem, const struct vocab_order *order,
    const struct ref_vocab_sample *sample, struct ref_vocab_result *result, char *error, int size)
{
    int64_t valid = ref_vocab_check(problem, error, size);
    if (valid < 0)
        return -1;
    struct vocab_order room = {0};
    const struct vocab_order *taken = take_order(problem, order, &room, error, size);
    if (!taken)
        return -1;
    int ranks = problem->ranks;
    /* Sampled tokens meet every row; sampled rows meet every token. */
    struct work some_tokens, some_rows;
    int status = work_begin(&some_tokens, problem, valid, error, size);
    status |= work_begin(&some_rows, problem, valid, error, size);
    int64_t tokens = status ? 0 : some_tokens.tokens.part[ranks];
    if (!status)
        status = check_list("token", sample->tokens, sample->tokens_count, tokens, error, size);
    if (!status)
        status = check_list(
            "vocabulary row", sample->rows, sample->rows_count, problem->vocab, error, size);
    if (!status) {
        restrict_to_list(&some_tokens.tokens, ranks, sample->tokens, sample->tokens_count);
        restrict_to_list(&some_rows.rows, ranks, sample->rows, sample->rows_count);
        status = forward(&some_tokens, result, error, size);
        result->valid = valid;
        result->mean = NAN;
    }
    if (!status && result->dx)
        input_gradient(&some_tokens, taken, result);
    if (!status && result->dw)
        weight_gradient(&some_rows, taken, sample->all_max, sample->all_log_z, result->dw);
    work_end(&some_tokens);
    work_end(&some_rows);
    vocab_order_free(&room);
    return status;
}
