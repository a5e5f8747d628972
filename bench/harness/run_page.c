/* The frame of a run's page: heading, style, and the sections in order. */
#include "bench/harness/run_page.h"
#include <errno.h>
#include <string.h>
#include "bench/harness/html.h"
#include "bench/harness/run_page_parts.h"

/* Wide tables scroll inside their own box, so the page itself fits a telephone. Verdicts are told
 * by words; colour only repeats them. */
static const char style[] =
    ":root{color-scheme:light}"
    "body{font:16px/1.5 system-ui,sans-serif;color:#1a1a1a;background:#fff;margin:0 auto;"
    "padding:1rem;max-width:75rem;overflow-wrap:anywhere}"
    "h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2.5rem;border-bottom:1px solid #ccc}"
    ".box{overflow-x:auto}"
    "table{border-collapse:collapse;font-size:.875rem}"
    "th,td{padding:.25rem .6rem;text-align:left;vertical-align:top;border-bottom:1px solid #e4e4e4;"
    "overflow-wrap:normal}"
    "th{background:#f4f4f4}"
    "td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}"
    "td.w{white-space:nowrap}"
    "pre{font:12px/1.4 ui-monospace,monospace;overflow-x:auto;background:#f8f8f8;padding:.75rem}"
    "code{font:12px/1.4 ui-monospace,monospace}"
    "img{max-width:100%;height:auto}figure{margin:1.5rem 0}figcaption{font-size:.875rem}"
    "summary{cursor:pointer}"
    ".bad{color:#9c2a00;font-weight:600}.good{color:#00594a}.other{color:#444}"
    "nav a{margin-right:1rem;display:inline-block}"
    "@media(max-width:40rem){.cards thead{display:none}"
    ".cards tr{display:block;border-bottom:1px solid #ccc;padding:.5rem 0}"
    ".cards td,.cards td.n{display:block;border:0;padding:0;text-align:left;white-space:normal}"
    ".cards td::before{content:attr(data-name) \": \";color:#666}}";

static void write_head(struct run_page *page)
{
    const char *name = strrchr(page->folder, '/');
    name = name && name[1] ? name + 1 : page->folder;
    new_file_print(&page->file,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
        "<link rel=\"icon\" href=\"data:,\">\n<title>flatpeak run ");
    html_text(&page->file, name);
    new_file_print(
        &page->file, "</title>\n<style>%s</style>\n</head>\n<body>\n<main>\n<h1>Run ", style);
    html_text(&page->file, name);
    new_file_print(&page->file,
        "</h1>\n<nav><a href=\"#claims\">Claims</a><a href=\"#plots\">Plots</a>"
        "<a href=\"#cases\">Cases</a><a href=\"#tables\">Tables</a>"
        "<a href=\"#environment\">Environment</a></nav>\n");
}

static int write_sections(struct run_page *page)
{
    write_head(page);
    if (page_summary(page) || page_claims(page) || page_plots(page) || page_cases(page) ||
        page_tables(page) || page_environment(page))
        return -1;
    new_file_print(&page->file, "</main>\n</body>\n</html>\n");
    return 0;
}

int run_page_write(const char *folder, const char *out, int *bad_input, char *error, int size)
{
    struct run_page page = {.folder = folder, .error = error, .error_size = size};
    *bad_input = 0;
    if (new_file_open(&page.file, out))
        return page_fail(&page, "%s: %s", out, strerror(errno));
    int status = write_sections(&page);
    if (status && !page.file.error)
        page.file.error = ECANCELED; /* leaves what was there before */
    int written = new_file_commit(&page.file);
    if (!status && written)
        status = page_fail(&page, "%s: %s", out, strerror(errno));
    *bad_input = page.bad_input;
    return status;
}
