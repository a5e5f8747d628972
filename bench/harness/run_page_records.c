/* Sections of a run's page that are made of its records: the cases, and where they ran. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "bench/harness/figures.h"
#include "bench/harness/html.h"
#include "bench/harness/run_page_parts.h"
#include "bench/harness/units.h"
#include "probe/record.h"

/* 1 = read, 0 = the run has none, -1 = the page's error is filled. */
static int read_records(struct run_page *page, struct record_set *set)
{
    char path[4096], **names;
    int count = page_list(page, "records", ".jsonl", &names);
    page_list_free(names, count > 0 ? count : 0);
    memset(set, 0, sizeof *set);
    if (count <= 0)
        return count;
    snprintf(path, sizeof path, "%s/records", page->folder);
    if (!record_set_read(path, set, page->error, page->error_size))
        return 1;
    page->bad_input = true;
    record_set_free(set);
    return -1;
}

static const char *text_at(const json_t *record, const char *path)
{
    const char *text = json_string_value(rec_get(record, path));
    return text ? text : "";
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void number_cell(struct run_page *page, const char *text)
{
    new_file_print(&page->file, "<td class=\"n\">");
    html_text(&page->file, text);
    new_file_print(&page->file, "</td>");
}

static void write_case(
    struct run_page *page, const json_t *record, const struct figure_selection *family)
{
    struct new_file *file = &page->file;
    char label[400], own[400], time[32] = "", rate[48] = "", peak[32] = "", increment[32] = "";
    figure_label(family, record, " threads ", false, label, sizeof label);
    figure_label(family, record, " threads ", true, own, sizeof own);
    double median_s = figure_at(record, "time.median_s");
    double value = figure_at(record, "throughput.value");
    double peak_bytes = figure_at(record, "memory.tracked_peak_bytes");
    double more_bytes = figure_at(record, "memory.increment_bytes|plan.increment_bytes");
    if (isfinite(median_s))
        units_seconds(median_s, time, sizeof time);
    if (isfinite(value))
        units_rate(value, text_at(record, "throughput.unit"), rate, sizeof rate);
    if (isfinite(peak_bytes))
        units_bytes((int64_t)peak_bytes, peak, sizeof peak);
    if (isfinite(more_bytes))
        units_bytes((int64_t)more_bytes, increment, sizeof increment);
    const char *verdict = text_at(record, "check.verdict");
    new_file_print(file, "<tr><td class=\"w\">");
    html_text(file, text_at(record, "impl"));
    new_file_print(file, "</td>");
    html_cell(file, "td", text_at(record, "device"));
    new_file_print(file, "<td>");
    html_text(file, label);
    new_file_print(file, *label && *own ? " " : "");
    html_text(file, own);
    new_file_print(file, "</td>");
    html_cell(file, "td", figure_kind(record));
    number_cell(page, time);
    number_cell(page, rate);
    number_cell(page, peak);
    number_cell(page, increment);
    html_cell(file, "td", *verdict ? verdict : text_at(record, "status"));
    new_file_print(file, "</tr>\n");
}

/* Every command of the family once: what runs its lines again. */
static void write_commands(struct run_page *page, const struct figure_selection *family)
{
    new_file_print(&page->file, "<details><summary>How to run these again</summary><pre>");
    for (int i = 0; i < family->count; i++) {
        const char *command = text_at(family->records[i], "run.command");
        bool told = false;
        for (int j = 0; j < i && !told; j++)
            told = !strcmp(command, text_at(family->records[j], "run.command"));
        if (!told) {
            html_text(&page->file, command);
            new_file_print(&page->file, "\n");
        }
    }
    new_file_print(&page->file, "</pre></details>\n");
}

static void write_family(struct run_page *page, const struct record_set *set, const char *op)
{
    struct figure_selection family = {calloc((size_t)set->count + 1, sizeof *family.records), 0};
    for (int i = 0; family.records && i < set->count; i++) {
        if (!strcmp(text_at(set->cases[i].records[0], "op"), op))
            family.records[family.count++] = set->cases[i].records[0];
    }
    new_file_print(&page->file, "<details><summary>");
    html_text(&page->file, op);
    new_file_print(&page->file,
        ", %d cases</summary><div class=\"box\"><table><thead><tr><th>implementation</th>"
        "<th>device</th><th>case</th><th>kind</th><th>time</th><th>throughput</th><th>peak</th>"
        "<th>increment</th><th>check</th></tr></thead><tbody>\n",
        family.count);
    for (int i = 0; i < family.count; i++)
        write_case(page, family.records[i], &family);
    new_file_print(&page->file, "</tbody></table></div>\n");
    write_commands(page, &family);
    new_file_print(&page->file, "</details>\n");
    figure_selection_free(&family);
}

int page_cases(struct run_page *page)
{
    struct record_set set;
    int found = read_records(page, &set);
    new_file_print(&page->file, "<h2 id=\"cases\">Cases</h2>\n");
    if (found < 0)
        return -1;
    if (!found)
        new_file_print(&page->file, "<p>This run has no records.</p>\n");
    for (int i = 0; i < set.count; i++) {
        const char *op = text_at(set.cases[i].records[0], "op");
        bool told = false;
        for (int j = 0; j < i && !told; j++)
            told = !strcmp(op, text_at(set.cases[j].records[0], "op"));
        if (!told)
            write_family(page, &set, op);
    }
    record_set_free(&set);
    return 0;
}

/* ---- environment ----------------------------------------------------------------------------- */

static void write_values(struct run_page *page, const json_t *object)
{
    const char *key;
    json_t *value;
    new_file_print(&page->file, "<div class=\"box\"><table><tbody>\n");
    json_object_foreach((json_t *)object, key, value)
    {
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));
        new_file_print(&page->file, "<tr>");
        html_cell(&page->file, "th", key);
        html_cell(&page->file, "td",
            json_is_string(value) ? json_string_value(value)
            : text                ? text
                                  : "");
        new_file_print(&page->file, "</tr>\n");
        free(text);
    }
    new_file_print(&page->file, "</tbody></table></div>\n");
}

int page_environment(struct run_page *page)
{
    struct record_set set;
    char path[4096];
    struct stat about;
    int found = read_records(page, &set);
    if (found < 0)
        return -1;
    new_file_print(&page->file, "<h2 id=\"environment\">Environment</h2>\n");
    snprintf(path, sizeof path, "%s/run.txt", page->folder);
    if (!stat(path, &about)) {
        new_file_print(&page->file, "<pre>");
        if (html_text_of_file(&page->file, path)) {
            record_set_free(&set);
            return page_fail(page, "%s: %s", path, strerror(errno));
        }
        new_file_print(&page->file, "</pre>\n");
    }
    if (found)
        write_values(page, json_object_get(set.cases[0].records[0], "env"));
    record_set_free(&set);
    return 0;
}
