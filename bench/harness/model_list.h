/* A model's parameters, read from a small text file (profiles/models/gpt-oss-20b.txt is one and
 * tells the format): name, shape and whether weight decay applies, one tensor a line. */
#pragma once
#include <stdint.h>
#include "ops/adamw_plan.h"

/* What a file may say beside its tensors, as "width heads 64". */
enum model_width {
    MODEL_WIDTH_LAYERS,
    MODEL_WIDTH_HIDDEN,
    MODEL_WIDTH_HEADS,
    MODEL_WIDTH_FFN,
    MODEL_WIDTH_EXPERTS,
    MODEL_WIDTH_TOPK,
    MODEL_WIDTH_VOCAB,
    MODEL_WIDTHS
};
const char *model_width_name(enum model_width width);

struct model_list {
    int64_t tensors;
    struct adamw_tensor *tensor; /* owned, names too */
    int64_t params;
    int64_t width[MODEL_WIDTHS]; /* 0 where the file does not say */
};

/* Reads a file, or, when `name` has neither a slash nor a file of that name beside it, NAME.txt of
 * the models that come with the suite. 0, or -1 with `error` saying file, line, what was found and
 * what is allowed. */
int model_list_read(struct model_list *list, const char *name, char *error, int size);

/* One tensor with weight decay. 0, or -1 when memory is short. */
int model_list_single(struct model_list *list, int64_t params);

void model_list_free(struct model_list *list);
