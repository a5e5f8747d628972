/* Memory and time over one launch setting: chunks of a dispatch, the host budget of the boundaries,
 * buckets of the optimizer. A line of such a plot is what records agree on but for that setting. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/csv.h"
#include "bench/harness/figures.h"
#include "probe/record.h"

struct sweep {
    const char *name, *op, *impl;
    const char *x;        /* path of the setting */
    const char *left_out; /* options that the setting stands for */
};

/* A host budget is shown by what was pinned for it: "as much as there is" has no other size. */
static const struct sweep sweeps[] = {
    {"chunks", "dispatch", "pipelined-llep", "figures.chunks|plan.chunks",
        " chunk_budget chunk_count max_chunks "},
    {"sco", "checkpoint", "sco", "memory.host_pinned_peak_bytes|plan.host_pinned_bytes",
        " host_budget "},
    {"optimizer", "optimizer", "offload-stream", "config.bucket", " bucket "},
};

struct sample {
    const json_t *record;
    double x;
    char series[200];
};

static int compare_samples(const void *left, const void *right)
{
    const struct sample *a = left, *b = right;
    int order = strcmp(a->series, b->series);
    return order ? order : (a->x > b->x) - (a->x < b->x);
}

static void write_sample(FILE *out, int line, const struct sample *at)
{
    fprintf(out, "%d", line);
    csv_text(out, at->series);
    csv_text(out, figure_kind(at->record));
    csv_figure(out, at->x);
    csv_real(out, figure_at(at->record, "time.median_s"));
    csv_real(out, figure_at(at->record, "time.q1_s"));
    csv_real(out, figure_at(at->record, "time.q3_s"));
    csv_figure(out, figure_at(at->record, "memory.tracked_peak_bytes"));
    csv_figure(out, figure_at(at->record, "memory.increment_bytes|plan.increment_bytes"));
    fputc('\n', out);
}

/* End of the line that begins at `begin`. */
static int line_end(const struct sample *samples, int count, int begin)
{
    int end = begin + 1;
    while (end < count && !strcmp(samples[begin].series, samples[end].series))
        end++;
    return end;
}

/* A line is called by what tells it from the others; one of a device that is not the CPU, by that
 * too. */
static void name_series(const struct sweep *sweep, const struct figure_selection *selection,
    struct sample *samples, int count)
{
    for (int i = 0; i < count; i++) {
        const char *device = json_string_value(json_object_get(samples[i].record, "device"));
        bool shown = device && strcmp(device, "cpu");
        char label[160];
        figure_label(selection, samples[i].record, sweep->left_out, false, label, sizeof label);
        snprintf(samples[i].series, sizeof samples[i].series, "%.30s%s%s", shown ? device : "",
            shown && *label ? " " : "", label);
    }
    qsort(samples, (size_t)count, sizeof *samples, compare_samples);
}

/* Keeps lines of at least two settings; returns how many samples they have. */
static int keep_lines(struct sample *samples, int count)
{
    int kept = 0;
    for (int begin = 0, end; begin < count; begin = end) {
        end = line_end(samples, count, begin);
        if (samples[end - 1].x <= samples[begin].x)
            continue;
        memmove(&samples[kept], &samples[begin], (size_t)(end - begin) * sizeof *samples);
        kept += end - begin;
    }
    return kept;
}

/* The samples of one kind that make lines: returns how many, or -1 when memory is short. */
static int collect(const struct sweep *sweep, const struct record_set *set, const char *kind,
    struct sample *samples)
{
    struct figure_selection selection;
    int count = 0;
    if (figure_select(set, sweep->op, sweep->impl, kind, &selection))
        return -1;
    for (int i = 0; i < selection.count; i++) {
        samples[count] = (struct sample){
            .record = selection.records[i], .x = figure_at(selection.records[i], sweep->x)};
        count += isfinite(samples[count].x);
    }
    name_series(sweep, &selection, samples, count);
    count = keep_lines(samples, count);
    /* What only other records had to be told from is not in the names of those that are drawn. */
    for (int i = 0; i < count; i++)
        selection.records[i] = samples[i].record;
    selection.count = count;
    name_series(sweep, &selection, samples, count);
    figure_selection_free(&selection);
    return count;
}

static int write_lines(const char *name, const struct sample *samples, int count,
    const char *folder, char *error, int size)
{
    struct new_file file;
    int lines = 0;
    if (figure_open(&file, folder, name,
            "line,series,kind,x,median_s,q1_s,q3_s,tracked_peak_bytes,increment_bytes", error,
            size))
        return -1;
    for (int begin = 0; begin < count; lines++) {
        int end = line_end(samples, count, begin);
        for (; begin < end; begin++)
            write_sample(file.stream, lines, &samples[begin]);
    }
    return figure_close(&file, folder, name, error, size);
}

static int write_sweep(const struct sweep *sweep, const struct record_set *set, const char *kind,
    const char *folder, char *error, int size)
{
    char name[64];
    struct sample *samples = calloc((size_t)set->count + 1, sizeof *samples);
    int count = samples ? collect(sweep, set, kind, samples) : -1;
    int status = 0;
    snprintf(name, sizeof name, "%s-%s", sweep->name, kind);
    if (count < 0) {
        snprintf(error, (size_t)size, "%s: memory is short", name);
        status = -1;
    } else if (count) {
        status = write_lines(name, samples, count, folder, error, size);
    }
    free(samples);
    return status;
}

int figures_write_sweeps(const struct record_set *set, const char *folder, char *error, int size)
{
    static const char *const kinds[] = {"measured", "simulated", "computed"};
    for (size_t i = 0; i < sizeof sweeps / sizeof *sweeps; i++) {
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            if (write_sweep(&sweeps[i], set, kinds[k], folder, error, size))
                return -1;
        }
    }
    return 0;
}
