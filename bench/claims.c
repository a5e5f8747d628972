/* claims - what the papers claim, what the records say
 *
 * Usage: claims [OPTION]... RECORDS...
 *
 * RECORDS are record files, or folders of *.jsonl. Prints one line per claim: what is claimed, the
 * printed figure, ours, and the verdict:
 *
 *   reproduced             the same figure by its own kind of evidence
 *   better                 fewer bytes than printed
 *   holds on this machine  a relation, measured here
 *   differs: WHY           it does not
 *   not run: needs WHAT    no record of it
 *
 * A verdict that is not the accepted one of the claims file is a failure; "not run" never is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/claims.h"
#include "bench/harness/options.h"

#define RECORD_FILES_MAX 64

struct claims_options {
    const char *claims, *save;
};

static const struct option claims_table[] = {
    {.name = "claims",
        .kind = OPTION_TEXT,
        .at = offsetof(struct claims_options, claims),
        .argument = "FILE",
        .fallback = "results/claims.tsv",
        .help = "the claims"},
    {.name = "save",
        .kind = OPTION_TEXT,
        .at = offsetof(struct claims_options, save),
        .argument = "FILE",
        .help = "write the outcomes as tab-separated lines too"},
};

static const char exit_codes[] = "  0    every verdict is the accepted one, or could not be given\n"
                                 "  1    a verdict changed\n"
                                 "  2    bad option or file\n"
                                 "  3    the output could not be written\n";

static int widest(int width, const char *text)
{
    int length = (int)strlen(text);
    return length > width ? length : width;
}

static int print_outcomes(
    const struct claims *claims, const struct claim_outcome *outcomes, FILE *save)
{
    int item = 5, quantity = 5, paper = 5, ours = 4, changed = 0;
    char printed[64];
    for (int i = 0; i < claims->count; i++) {
        const struct claim *claim = &claims->list[i];
        snprintf(printed, sizeof printed, "%s %s", claim->printed, claim->unit);
        item = widest(item, claim->item);
        quantity = widest(quantity, claim->quantity);
        paper = widest(paper, printed);
        ours = widest(ours, outcomes[i].ours);
    }
    printf("%-*s  %-*s  %*s  %*s  %s\n", item, "paper", quantity, "claim", paper, "printed", ours,
        "ours", "verdict");
    for (int i = 0; i < claims->count; i++) {
        const struct claim *claim = &claims->list[i];
        const struct claim_outcome *outcome = &outcomes[i];
        snprintf(printed, sizeof printed, "%s %s", claim->printed, claim->unit);
        printf("%-*s  %-*s  %*s  %*s  %s", item, claim->item, quantity, claim->quantity, paper,
            printed, ours, outcome->ours, outcome->verdict);
        if (outcome->changed)
            printf("   CHANGED, accepted: %s", claim->accepted);
        putchar('\n');
        if (save)
            fprintf(save, "%s\t%s\t%s\t%s\t%s\n", claim->id, claim->printed, claim->unit,
                outcome->ours, outcome->verdict);
        changed += outcome->changed;
    }
    return changed;
}

static int evaluate(const struct claims *claims, const json_t *records, const char *save_path)
{
    struct claim_outcome *outcomes = calloc((size_t)claims->count + 1, sizeof *outcomes);
    FILE *save = save_path ? fopen(save_path, "w") : NULL;
    int status = EXIT_OK;
    if (!outcomes || (save_path && !save)) {
        fprintf(stderr, "claims: %s\n", outcomes ? "--save cannot be written" : "memory is short");
        free(outcomes);
        if (save)
            fclose(save);
        return EXIT_ENVIRONMENT;
    }
    for (int i = 0; i < claims->count; i++)
        claim_evaluate(&claims->list[i], records, &outcomes[i]);
    if (print_outcomes(claims, outcomes, save))
        status = EXIT_FAILED_CHECK;
    bool written = !fflush(stdout) && !ferror(stdout);
    if (save && ferror(save))
        written = false;
    if (save && fclose(save))
        written = false;
    if (!written) {
        fprintf(stderr, "claims: the output could not be written\n");
        status = EXIT_ENVIRONMENT;
    }
    free(outcomes);
    return status;
}

static int run(const struct claims_options *given, const struct options *options)
{
    char error[512];
    struct claims claims;
    int status = EXIT_OK;
    json_t *records = json_array();
    if (claims_read(given->claims, &claims, error, sizeof error))
        status = EXIT_BAD_INPUT;
    for (int i = 0; !status && i < options_argument_count(options); i++) {
        struct record_set set;
        if (record_set_read(options_argument(options, i), &set, error, sizeof error))
            status = EXIT_BAD_INPUT;
        else
            json_array_extend(records, set.records);
        record_set_free(&set);
    }
    if (status)
        fprintf(stderr, "claims: %s\n", error);
    else
        status = evaluate(&claims, records, given->save);
    json_decref(records);
    claims_free(&claims);
    return status;
}

int main(int argc, char **argv)
{
    struct claims_options given;
    struct options *options;
    const struct option_group group = {
        "Options", claims_table, sizeof claims_table / sizeof *claims_table, &given};
    const struct program program = {
        .name = "claims",
        .summary = "Holds the claims of the papers against record files.",
        .examples = "  claims results/runs/20260101T000000Z-1/records\n",
        .exit_codes = exit_codes,
        .groups = &group,
        .group_count = 1,
        .arguments = "RECORDS...",
        .least_arguments = 1,
        .most_arguments = RECORD_FILES_MAX,
    };
    int status = options_parse(&options, &program, argc, argv);
    if (status >= 0)
        return status;
    options_next(options);
    status = run(&given, options);
    options_free(options);
    return status;
}
