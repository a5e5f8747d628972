/* claims - what the papers claim, what our runs say
 *
 * Usage: claims [OPTION]... RECORDS...
 *
 * RECORDS are record files, or folders of *.jsonl; --tables names a folder with tables as CSV.
 * Prints one line per claim: what is claimed, the printed figure, ours, and the verdict:
 *
 *   reproduced                 the same figure by its own kind of evidence
 *   better                     fewer bytes than printed, of the same live sets
 *   holds on this machine      a relation, measured here
 *   model agrees, differs      a simulated time
 *   fitted                     the printed figure set the profile of the simulated machine
 *   consistent, inconsistent   what the paper's own other figures give for it
 *   differs: WHY               it does not hold
 *   not run: needs WHAT        nothing was run that could say it
 *
 * A verdict that is not the accepted one of the claims file is a failure; "not run" never is. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "bench/harness/claims.h"
#include "bench/harness/options.h"
#include "device/profiles_folder.h"
#include "probe/new_file.h"

#define RECORD_FILES_MAX 64

enum form { FORM_LINES, FORM_SUMMARY, FORM_MARKDOWN, FORM_MISSING };
static const char *const form_names[] = {"lines", "summary", "markdown", "missing", NULL};

struct claims_options {
    const char *claims, *tables, *save;
    int form;
};

static const struct option claims_table[] = {
    {.name = "claims",
        .kind = OPTION_TEXT,
        .at = offsetof(struct claims_options, claims),
        .argument = "FILE",
        .default_note = "results/claims.tsv of this folder, or the suite's",
        .help = "the claims"},
    {.name = "tables",
        .kind = OPTION_TEXT,
        .at = offsetof(struct claims_options, tables),
        .argument = "DIR",
        .help = "tables as CSV (bench/tables/NAME.sh --csv >DIR/NAME.csv)"},
    {.name = "print",
        .kind = OPTION_NAME,
        .at = offsetof(struct claims_options, form),
        .argument = "FORM",
        .fallback = "lines",
        .names = form_names,
        .help =
            "a line per claim; per table of the papers; that as Markdown; claims of no line yet"},
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

/* ---- a line per claim ------------------------------------------------------------------------ */

static int widest(int width, const char *text)
{
    int length = (int)strlen(text);
    return length > width ? length : width;
}

static void printed_text(const struct claim *claim, char *text, int size)
{
    snprintf(text, (size_t)size, "%s%s%s", claim->printed, *claim->unit ? " " : "", claim->unit);
}

static void print_lines(const struct claims *claims, const struct claim_outcome *outcomes)
{
    int item = 5, quantity = 5, paper = 7, ours = 4;
    char printed[128];
    for (int i = 0; i < claims->count; i++) {
        printed_text(&claims->list[i], printed, sizeof printed);
        item = widest(item, claims->list[i].item);
        quantity = widest(quantity, claims->list[i].quantity);
        paper = widest(paper, printed);
        ours = widest(ours, outcomes[i].ours);
    }
    printf("%-*s  %-*s  %*s  %*s  %s\n", item, "paper", quantity, "claim", paper, "printed", ours,
        "ours", "verdict");
    for (int i = 0; i < claims->count; i++) {
        printed_text(&claims->list[i], printed, sizeof printed);
        printf("%-*s  %-*s  %*s  %*s  %s", item, claims->list[i].item, quantity,
            claims->list[i].quantity, paper, printed, ours, outcomes[i].ours, outcomes[i].verdict);
        if (outcomes[i].changed)
            printf("   CHANGED, accepted: %s", claims->list[i].accepted);
        putchar('\n');
    }
}

/* ---- a line per item ------------------------------------------------------------------------- */

static const char *const classes[] = {"reproduced", "better", "holds on this machine",
    "model agrees", "fitted", "consistent in the paper", "inconsistent in the paper",
    "model differs", "differs", "not run"};
static const char *const headings[] = {"reproduced", "better", "holds here", "model agrees",
    "fitted", "consistent", "inconsistent", "model differs", "differs", "not run"};
enum { CLASSES = sizeof classes / sizeof *classes };

struct item_summary {
    const char *item;
    int claims, changed, of_class[CLASSES];
};

static int class_of(const char *verdict)
{
    char text[CLAIM_TEXT];
    claim_verdict_class(verdict, text, sizeof text);
    for (int c = 0; c < CLASSES; c++) {
        if (!strcmp(text, classes[c]))
            return c;
    }
    return -1;
}

static void count_claim(struct item_summary *summary, const struct claim_outcome *outcome)
{
    int class = class_of(outcome->verdict);
    summary->claims++;
    summary->changed += outcome->changed;
    if (class >= 0)
        summary->of_class[class]++;
}

/* Items in the order in which they are first met, and all together behind them. Returns how many.
 */
static int summarise(const struct claims *claims, const struct claim_outcome *outcomes,
    struct item_summary *summaries)
{
    int count = 0;
    struct item_summary all = {.item = "all"};
    for (int i = 0; i < claims->count; i++) {
        int at = 0;
        while (at < count && strcmp(summaries[at].item, claims->list[i].item))
            at++;
        if (at == count)
            summaries[count++] = (struct item_summary){.item = claims->list[i].item};
        count_claim(&summaries[at], &outcomes[i]);
        count_claim(&all, &outcomes[i]);
    }
    summaries[count++] = all;
    return count;
}

/* The heading; classes that no claim has are left out. */
static void print_summary_heading(const struct item_summary *all, int width, bool markdown)
{
    if (markdown)
        printf("| paper | claims |");
    else
        printf("%-*s  claims", width, "paper");
    for (int c = 0; c < CLASSES; c++) {
        if (all->of_class[c])
            printf(markdown ? " %s |" : "  %s", headings[c]);
    }
    if (markdown) {
        printf("\n|---|--:|");
        for (int c = 0; c < CLASSES; c++)
            printf("%s", all->of_class[c] ? "--:|" : "");
    }
    putchar('\n');
}

static void print_summary(const struct item_summary *summaries, int count, bool markdown)
{
    const struct item_summary *all = &summaries[count - 1];
    int width = 5;
    for (int i = 0; i < count; i++)
        width = widest(width, summaries[i].item);
    print_summary_heading(all, width, markdown);
    for (int i = 0; i < count; i++) {
        if (markdown)
            printf("| %s | %d |", summaries[i].item, summaries[i].claims);
        else
            printf("%-*s  %6d", width, summaries[i].item, summaries[i].claims);
        for (int c = 0; c < CLASSES; c++) {
            char number[16] = "";
            if (summaries[i].of_class[c])
                snprintf(number, sizeof number, "%d", summaries[i].of_class[c]);
            if (all->of_class[c] && markdown)
                printf(" %s |", number);
            else if (all->of_class[c])
                printf("  %*s", (int)strlen(headings[c]), number);
        }
        putchar('\n');
    }
}

/* What a reader of the summary must not miss. */
static void print_changed(const struct claims *claims, const struct claim_outcome *outcomes)
{
    for (int i = 0; i < claims->count; i++) {
        const struct claim *claim = &claims->list[i];
        if (outcomes[i].changed)
            printf("CHANGED: %s, %s: printed %s, ours %s: %s; accepted: %s\n", claim->item,
                claim->quantity, claim->printed, outcomes[i].ours, outcomes[i].verdict,
                claim->accepted);
    }
}

/* ---- what no claim names yet ----------------------------------------------------------------- */

static bool is_claimed(const struct claims *claims, const struct table_lines *lines, int index)
{
    for (int i = 0; i < claims->count; i++) {
        const struct claim *claim = &claims->list[i];
        if (claim->kind == CLAIM_TABLE &&
            table_lines_find(lines, claim->where, claim->figure) == &lines->list[index])
            return true;
    }
    return false;
}

/* Letters, digits and dots of the text; '-' for all between them. */
static void print_id(const char *text)
{
    bool gap = false;
    for (; *text; text++) {
        bool kept = isalnum((unsigned char)*text) || *text == '.';
        if (kept)
            printf("%s%c", gap ? "-" : "", tolower((unsigned char)*text));
        gap = !kept;
    }
}

/* Lines for the claims file: whoever adds one reads its quantity and its verdict first. Lines of
 * figures that the paper does not print have no verdict and are no claims. */
static void print_missing(const struct claims *claims, const struct table_lines *lines)
{
    char class[CLAIM_TEXT];
    for (int i = 0; i < lines->count; i++) {
        const struct table_line *line = &lines->list[i];
        int title = (int)strcspn(line->table, ":");
        if (!strcmp(line->verdict, "-") || is_claimed(claims, lines, i))
            continue;
        claim_verdict_class(line->verdict, class, sizeof class);
        print_id(line->script);
        putchar('.');
        print_id(line->row);
        putchar('.');
        print_id(line->figure);
        printf("\t%.*s\t%s: %s\t%s\t%s\ttable\t-\t%.*s\t%s | %s\tbench/tables/%s.sh\t"
               "bench/tables/%s.sh\t%s\n",
            title, line->table, line->row, line->figure, line->unit,
            *line->paper ? line->paper : "-", title, line->table, line->row, line->figure,
            line->script, line->script, strcmp(class, "not run") ? class : "-");
    }
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* 0, or -1 with errno. */
static int save_outcomes(
    const struct claims *claims, const struct claim_outcome *outcomes, const char *path)
{
    struct new_file file;
    if (new_file_open(&file, path))
        return -1;
    new_file_print(&file,
        "id\titem\tquantity\tunit\tprinted\tkind\tours\tverdict\taccepted\tchanged\tcommand\n");
    for (int i = 0; i < claims->count; i++) {
        const struct claim *claim = &claims->list[i];
        new_file_print(&file, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", claim->id,
            claim->item, claim->quantity, claim->unit, claim->printed, claim_kind_name(claim->kind),
            outcomes[i].ours, outcomes[i].verdict, claim->accepted,
            outcomes[i].changed ? "yes" : "no", claim->command);
    }
    return new_file_commit(&file);
}

static int print_outcomes(const struct claims_options *given, const struct claims *claims,
    const struct claim_outcome *outcomes)
{
    int status = EXIT_OK;
    struct item_summary *summaries = calloc((size_t)claims->count + 1, sizeof *summaries);
    if (!summaries) {
        fprintf(stderr, "claims: memory is short\n");
        return EXIT_ENVIRONMENT;
    }
    int count = summarise(claims, outcomes, summaries);
    if (summaries[count - 1].changed)
        status = EXIT_FAILED_CHECK;
    if (given->form == FORM_LINES)
        print_lines(claims, outcomes);
    else if (given->form != FORM_MISSING)
        print_summary(summaries, count, given->form == FORM_MARKDOWN);
    if (given->form == FORM_SUMMARY)
        print_changed(claims, outcomes);
    free(summaries);
    if (given->save && save_outcomes(claims, outcomes, given->save)) {
        fprintf(stderr, "claims: %s: %s\n", given->save, strerror(errno));
        return EXIT_ENVIRONMENT;
    }
    if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "claims: the output could not be written\n");
        return EXIT_ENVIRONMENT;
    }
    return status;
}

static int evaluate(const struct claims_options *given, const struct claims *claims,
    const json_t *records, const struct table_lines *lines)
{
    struct claim_outcome *outcomes = calloc((size_t)claims->count + 1, sizeof *outcomes);
    if (!outcomes) {
        fprintf(stderr, "claims: memory is short\n");
        return EXIT_ENVIRONMENT;
    }
    for (int i = 0; i < claims->count; i++)
        claim_evaluate(&claims->list[i], records, lines, &outcomes[i]);
    if (given->form == FORM_MISSING)
        print_missing(claims, lines);
    int status = print_outcomes(given, claims, outcomes);
    free(outcomes);
    return status;
}

/* Without a file that of this folder, or else the one that lies beside the profiles: in the tree,
 * or where it was installed. */
static int read_claims(const char *file, struct claims *claims, char *error, int size)
{
    static const char own[] = "results/claims.tsv";
    char path[1200];
    if (file || !access(own, R_OK))
        return claims_read(file ? file : own, claims, error, size);
    FILE *found = profiles_open("../results/claims.tsv", path, sizeof path);
    if (found) {
        fclose(found);
        return claims_read(path, claims, error, size);
    }
    memset(claims, 0, sizeof *claims);
    snprintf(error, (size_t)size, "results/claims.tsv was not found; name a file with --claims");
    return -1;
}

static int run(const void *fields, const struct options *options)
{
    const struct claims_options *given = fields;
    char error[512];
    struct claims claims;
    struct table_lines lines = {NULL, 0, 0};
    int status = EXIT_OK;
    json_t *records = json_array();
    if (read_claims(given->claims, &claims, error, sizeof error) ||
        (given->tables && table_lines_read(given->tables, &lines, error, sizeof error)))
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
        status = evaluate(given, &claims, records, &lines);
    json_decref(records);
    table_lines_free(&lines);
    claims_free(&claims);
    return status;
}

int main(int argc, char **argv)
{
    struct claims_options given;
    const struct option_group group = {
        "Options", claims_table, sizeof claims_table / sizeof *claims_table, &given};
    const struct program program = {
        .name = "claims",
        .summary = "Holds the claims of the papers against records and tables.",
        .examples = "  claims --tables run/tables run/records\n"
                    "  claims --print summary --tables run/tables run/records\n",
        .exit_codes = exit_codes,
        .groups = &group,
        .group_count = 1,
        .arguments = "[RECORDS...]",
        .least_arguments = 0,
        .most_arguments = RECORD_FILES_MAX,
    };
    return options_main(&program, argc, argv, run);
}
