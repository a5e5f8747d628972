/* Sections of a run's page that are made of its text files: what ended how, claims, plots, tables.
 */
#include <errno.h>
#include <string.h>
#include "bench/harness/html.h"
#include "bench/harness/run_page_parts.h"

static bool starts_with(const char *text, const char *start)
{
    return !strncmp(text, start, strlen(start));
}

/* ---- what ended how -------------------------------------------------------------------------- */

/* steps.tsv of run_all.sh. */
enum { STEP_NAME, STEP_STATUS, STEP_SECONDS, STEP_LOG, STEP_COLUMNS };

static void write_steps(struct run_page *page, const struct tsv *steps)
{
    int failed = 0;
    for (int i = 0; i < steps->count; i++)
        failed += strcmp(tsv_at(steps, i, STEP_STATUS), "0") != 0;
    new_file_print(&page->file, "<p class=\"%s\">%d of %d steps ended well.</p>\n",
        failed ? "bad" : "good", steps->count - failed, steps->count);
    new_file_print(&page->file,
        "<details%s><summary>Steps</summary><div class=\"box\"><table><thead><tr><th>step</th>"
        "<th>exit</th><th>seconds</th><th>log</th></tr></thead><tbody>\n",
        failed ? " open" : "");
    for (int i = 0; i < steps->count; i++) {
        bool good = !strcmp(tsv_at(steps, i, STEP_STATUS), "0");
        new_file_print(&page->file, "<tr class=\"%s\">", good ? "" : "bad");
        for (int column = 0; column < STEP_COLUMNS; column++)
            html_cell(&page->file, "td", tsv_at(steps, i, column));
        new_file_print(&page->file, "</tr>\n");
    }
    new_file_print(&page->file, "</tbody></table></div></details>\n");
}

int page_summary(struct run_page *page)
{
    struct tsv steps;
    int status = tsv_read(page, "steps.tsv", &steps);
    if (!status && steps.present && steps.columns != STEP_COLUMNS) {
        page->bad_input = true;
        status = page_fail(page, "%s/steps.tsv: has %d columns, needs %d", page->folder,
            steps.columns, STEP_COLUMNS);
    }
    if (!status && steps.present)
        write_steps(page, &steps);
    tsv_free(&steps);
    return status;
}

/* ---- claims ---------------------------------------------------------------------------------- */

/* claims.tsv of claims --save. */
enum {
    CLAIM_ID,
    CLAIM_ITEM,
    CLAIM_QUANTITY,
    CLAIM_UNIT,
    CLAIM_PRINTED,
    CLAIM_KIND,
    CLAIM_OURS,
    CLAIM_VERDICT,
    CLAIM_ACCEPTED,
    CLAIM_CHANGED,
    CLAIM_COMMAND,
    CLAIM_COLUMNS
};

static const char *look_of(const char *verdict, bool changed)
{
    if (changed || starts_with(verdict, "differs") || starts_with(verdict, "model differs"))
        return "bad";
    if (starts_with(verdict, "not run") || starts_with(verdict, "inconsistent") ||
        starts_with(verdict, "fitted"))
        return "other";
    return "good";
}

/* On a narrow screen a row stands as lines, each with the name of its column. */
static void open_cell(struct run_page *page, const char *name, const char *look)
{
    new_file_print(&page->file, "<td data-name=\"%s\" class=\"%s\">", name, look);
}

static void write_claim(struct run_page *page, const struct tsv *claims, int i)
{
    struct new_file *file = &page->file;
    bool changed = !strcmp(tsv_at(claims, i, CLAIM_CHANGED), "yes");
    const char *verdict = tsv_at(claims, i, CLAIM_VERDICT), *unit = tsv_at(claims, i, CLAIM_UNIT);
    new_file_print(file, "<tr>");
    open_cell(page, "paper", "w");
    html_text(file, tsv_at(claims, i, CLAIM_ITEM));
    new_file_print(file, "</td>");
    open_cell(page, "claim", "");
    html_text(file, tsv_at(claims, i, CLAIM_QUANTITY));
    new_file_print(file, "</td>");
    open_cell(page, "printed", "n");
    html_text(file, tsv_at(claims, i, CLAIM_PRINTED));
    new_file_print(file, *unit ? " " : "");
    html_text(file, unit);
    new_file_print(file, "</td>");
    open_cell(page, "ours", "n");
    html_text(file, tsv_at(claims, i, CLAIM_OURS));
    new_file_print(file, "</td>");
    open_cell(page, "verdict", look_of(verdict, changed));
    html_text(file, verdict);
    if (changed) {
        new_file_print(file, "; CHANGED, accepted: ");
        html_text(file, tsv_at(claims, i, CLAIM_ACCEPTED));
    }
    new_file_print(file, "</td>");
    open_cell(page, "again", "");
    new_file_print(file, "<code>");
    html_text(file, tsv_at(claims, i, CLAIM_COMMAND));
    new_file_print(file, "</code></td></tr>\n");
}

int page_claims(struct run_page *page)
{
    struct tsv claims;
    int status = tsv_read(page, "claims.tsv", &claims);
    new_file_print(&page->file, "<h2 id=\"claims\">Claims</h2>\n");
    if (!status && claims.present && claims.columns != CLAIM_COLUMNS) {
        page->bad_input = true;
        status = page_fail(page, "%s/claims.tsv: has %d columns, needs %d", page->folder,
            claims.columns, CLAIM_COLUMNS);
    }
    if (!status && !claims.present)
        new_file_print(&page->file, "<p>This run has no claims.</p>\n");
    if (!status && claims.present) {
        new_file_print(&page->file,
            "<p>Reproduced: the figure itself, by its own kind of evidence. Holds on this machine: "
            "a relation, measured here. Model agrees: a simulated figure. The last column runs "
            "that "
            "line again.</p>\n<div class=\"box\"><table class=\"cards\"><thead><tr><th>paper</th>"
            "<th>claim</th>"
            "<th>printed</th><th>ours</th><th>verdict</th><th>again</th></tr></thead><tbody>\n");
        for (int i = 0; i < claims.count; i++)
            write_claim(page, &claims, i);
        new_file_print(&page->file, "</tbody></table></div>\n");
    }
    tsv_free(&claims);
    return status;
}

/* ---- plots and tables ------------------------------------------------------------------------ */

static int write_plot(struct run_page *page, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/plots/%s", page->folder, name);
    new_file_print(&page->file, "<figure><img alt=\"");
    html_text(&page->file, name);
    /* As an image, so that nothing inside it can run or clash with the page. */
    new_file_print(&page->file, "\" src=\"data:image/svg+xml;base64,");
    if (html_base64_of_file(&page->file, path)) {
        page->bad_input = true;
        return page_fail(page, "%s: %s", path, strerror(errno));
    }
    new_file_print(&page->file, "\"><figcaption>");
    html_text(&page->file, name);
    new_file_print(&page->file, "</figcaption></figure>\n");
    return 0;
}

static int write_table(struct run_page *page, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/tables/%s", page->folder, name);
    new_file_print(&page->file, "<details><summary>");
    html_text(&page->file, name);
    new_file_print(&page->file, "</summary><pre>");
    if (html_text_of_file(&page->file, path)) {
        page->bad_input = true;
        return page_fail(page, "%s: %s", path, strerror(errno));
    }
    new_file_print(&page->file, "</pre></details>\n");
    return 0;
}

/* A section with every file of a folder. */
static int write_folder(struct run_page *page, const char *sub, const char *ending,
    const char *none, int (*write)(struct run_page *, const char *))
{
    char **names;
    int count = page_list(page, sub, ending, &names), status = 0;
    for (int i = 0; i < count && !status; i++)
        status = write(page, names[i]);
    if (count < 0)
        return -1;
    if (!count)
        new_file_print(&page->file, "<p>%s</p>\n", none);
    page_list_free(names, count);
    return status;
}

int page_plots(struct run_page *page)
{
    new_file_print(&page->file, "<h2 id=\"plots\">Plots</h2>\n");
    return write_folder(page, "plots", ".svg",
        "This run has no plots (gnuplot and matplotlib draw them).", write_plot);
}

int page_tables(struct run_page *page)
{
    new_file_print(&page->file, "<h2 id=\"tables\">Tables</h2>\n");
    return write_folder(page, "tables", ".txt", "This run has no tables.", write_table);
}
