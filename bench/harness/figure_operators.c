/* Implementations side by side, family by family: time, throughput and memory of the same cases. */
#include <string.h>
#include "bench/harness/csv.h"
#include "bench/harness/figures.h"
#include "probe/record.h"

/* More groups of bars than this cannot be read. */
#define GROUPS_MAX 6
#define BARS_MAX 12
#define TEXT 400

/* What a bar and its group are called, in the order in which they are first met. */
struct names {
    char list[BARS_MAX][TEXT];
    int count, most;
};

/* The number of a name, added when there is room; -1 = no room. */
static int number_of(struct names *names, const char *text)
{
    for (int i = 0; i < names->count; i++) {
        if (!strcmp(names->list[i], text))
            return i;
    }
    if (names->count == names->most)
        return -1;
    snprintf(names->list[names->count], TEXT, "%s", text);
    return names->count++;
}

static void write_bar(FILE *out, const json_t *record, int group, const char *group_name, int bar,
    const char *bar_name)
{
    const char *unit = json_string_value(rec_get(record, "throughput.unit"));
    fprintf(out, "%d", group);
    csv_text(out, *group_name ? group_name : "all");
    csv_int(out, bar);
    csv_text(out, bar_name);
    csv_text(out, figure_kind(record));
    csv_real(out, figure_at(record, "time.median_s"));
    csv_real(out, figure_at(record, "time.q1_s"));
    csv_real(out, figure_at(record, "time.q3_s"));
    csv_real(out, figure_at(record, "throughput.value"));
    csv_text(out, unit ? unit : "");
    csv_figure(out, figure_at(record, "memory.tracked_peak_bytes"));
    csv_figure(out, figure_at(record, "memory.increment_bytes"));
    fputc('\n', out);
}

static int write_family(const struct figure_selection *selection, const char *name,
    const char *folder, char *error, int size)
{
    struct new_file file;
    struct names groups = {.most = GROUPS_MAX}, bars = {.most = BARS_MAX};
    if (figure_open(&file, folder, name,
            "group_index,group,bar_index,bar,kind,median_s,q1_s,q3_s,throughput,throughput_unit,"
            "tracked_peak_bytes,increment_bytes",
            error, size))
        return -1;
    for (int i = 0; i < selection->count; i++) {
        const json_t *record = selection->records[i];
        char group[TEXT / 4], variant[TEXT / 4], bar[TEXT];
        figure_label(selection, record, "", false, group, sizeof group);
        figure_label(selection, record, "", true, variant, sizeof variant);
        snprintf(bar, sizeof bar, "%s%s%s", json_string_value(json_object_get(record, "impl")),
            *variant ? " " : "", variant);
        int at = number_of(&groups, group);
        int number = at < 0 ? -1 : number_of(&bars, bar);
        if (number >= 0)
            write_bar(file.stream, record, at, group, number, bar);
    }
    return figure_close(&file, folder, name, error, size);
}

/* Keeps the cases of the family's first launch: they were made to stand side by side. */
static void keep_first_launch(struct figure_selection *selection)
{
    int kept = 0;
    const json_t *id = selection->count ? rec_get(selection->records[0], "run.id") : NULL;
    for (int i = 0; i < selection->count; i++) {
        if (!id || json_equal(rec_get(selection->records[i], "run.id"), id))
            selection->records[kept++] = selection->records[i];
    }
    selection->count = kept;
}

int figures_write_operators(const struct record_set *set, const char *folder, char *error, int size)
{
    static const char *const families[] = {"vocab", "dispatch", "checkpoint", "optimizer"};
    static const char *const kinds[] = {"measured", "simulated"};
    for (int i = 0; i < 8; i++) {
        char name[64];
        struct figure_selection selection;
        const char *family = families[i / 2], *kind = kinds[i % 2];
        snprintf(name, sizeof name, "operators-%s-%s", family, kind);
        if (figure_select(set, family, NULL, kind, &selection)) {
            snprintf(error, (size_t)size, "%s: memory is short", name);
            return -1;
        }
        keep_first_launch(&selection);
        int status = selection.count ? write_family(&selection, name, folder, error, size) : 0;
        figure_selection_free(&selection);
        if (status)
            return -1;
    }
    return 0;
}
