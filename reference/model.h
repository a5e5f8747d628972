/* The loss of the composed model (ops/model.h) in FP64, nothing rounded: what its gradients are
 * held against, by finite differences. The routing is given, since a choice has no derivative. */
#pragma once
#include <stdint.h>

struct ref_model {
    int64_t sequences, length, layers, hidden, heads, ffn, experts, vocab;
    int topk;
    const int32_t *tokens;  /* [sequences, length] */
    const int64_t *targets; /* the same */
    const int32_t *idx;     /* [layers, sequences * length, topk] */
};

/* Parameters in the model's order: embedding [V, H]; of each layer q, k, v, o [H, H], router [E,
 * H], gate and up [E, F, H], down [E, H, F]; gains [2 L + 1, H]; head [V, H]. */
int64_t ref_model_parameters(const struct ref_model *model);

/* The mean loss over all tokens; NaN when memory is short. */
double ref_model_loss_f64(const struct ref_model *model, const double *parameters);
