/* Reads claims. A line that says nothing that can be held against a run is refused here: evaluated,
 * it would look like one that was not run, which is never a failure. */
#include "bench/harness/claims.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/units.h"

static const char *const kind_names[] = {"bitwise", "exact", "relation", "ratio", "table", NULL};

/* Cuts a line at its tabs. Returns the number of columns. */
static int cut(char *line, const char **columns)
{
    int count = 0;
    for (char *at = line; at; count++) {
        char *tab = strchr(at, '\t');
        if (count < CLAIM_COLUMNS)
            columns[count] = at;
        if (tab)
            *tab++ = '\0';
        at = tab;
    }
    return count;
}

bool claim_split_relation(const char *figure, char above[64], char below[64], const char **paths)
{
    int at = 0;
    if (sscanf(figure, "%63s / %63s : %n", above, below, &at) != 2 || !at)
        return false;
    *paths = figure + at;
    return true;
}

static bool is_number(const char *text)
{
    double value;
    return units_parse_real(text, -1, &value) == UNITS_OK;
}

static bool is_tolerance(const char *text)
{
    double value;
    return units_parse_real(text, -1, &value) == UNITS_OK && value >= 0;
}

/* What may be accepted: a verdict without its reason, or any. Nothing else, since a verdict that no
 * evidence gives would be held against every run, and an empty one against none. */
static bool is_accepted(const char *text)
{
    static const char *const words[] = {"-", "reproduced", "better", "holds on this machine",
        "model agrees", "model differs", "fitted", "consistent in the paper",
        "inconsistent in the paper", "differs"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(text, words[i]))
            return true;
    return false;
}

/* Whether every word is PATH=VALUE. */
static bool is_selector(const char *where)
{
    while (*where) {
        size_t length = strcspn(where, " "), equals = strcspn(where, "=");
        if (!equals || equals >= length || equals >= CLAIM_PATH)
            return false;
        where += length + strspn(where + length, " ");
    }
    return true;
}

/* NULL, or what is wrong with the columns of a claim about records. */
static const char *problem_of_records(const struct claim *claim)
{
    char above[64], below[64];
    const char *paths;
    if (!is_selector(claim->where))
        return "records are selected by PATH=VALUE, between spaces";
    if (claim->kind == CLAIM_EXACT &&
        !(is_number(claim->printed) && is_tolerance(claim->tolerance)))
        return "an exact claim needs a printed number and a tolerance";
    if ((claim->kind == CLAIM_RELATION || claim->kind == CLAIM_RATIO) &&
        (claim->tolerance[0] != '<' || !is_number(claim->tolerance + 1)))
        return "a relation or ratio needs a limit such as <1 as its tolerance";
    if (claim->kind == CLAIM_RELATION && !claim_split_relation(claim->figure, above, below, &paths))
        return "the figure of a relation is 'A / B : PATH'";
    if (claim->kind == CLAIM_RATIO && !strstr(claim->figure, " / "))
        return "the figure of a ratio is 'PATH / PATH'";
    return NULL;
}

/* Fills a claim from its line; NULL, or what is wrong. */
static const char *parse_claim(struct claim *claim)
{
    const char *columns[CLAIM_COLUMNS];
    if (cut(claim->line, columns) != CLAIM_COLUMNS)
        return "a claim has 12 columns between tabs";
    claim->id = columns[0];
    claim->item = columns[1];
    claim->quantity = columns[2];
    claim->unit = columns[3];
    claim->printed = columns[4];
    claim->tolerance = columns[6];
    claim->where = columns[7];
    claim->figure = columns[8];
    claim->command = columns[9];
    claim->needs = columns[10];
    claim->accepted = columns[11];
    if (!is_accepted(claim->accepted))
        return "the accepted verdict is none that a claim can have; '-' is any";
    for (int kind = 0; kind_names[kind]; kind++) {
        if (strcmp(kind_names[kind], columns[5]))
            continue;
        claim->kind = kind;
        if (kind == CLAIM_TABLE)
            return strstr(claim->figure, " | ") ? NULL
                                                : "a line of a table is named by 'ROW | FIGURE'";
        return problem_of_records(claim);
    }
    return "kind is not one of bitwise, exact, relation, ratio, table";
}

static struct claim *new_claim(struct claims *claims)
{
    if (claims->count == claims->capacity) {
        int capacity = claims->capacity ? 2 * claims->capacity : 32;
        struct claim *grown = realloc(claims->list, (size_t)capacity * sizeof *claims->list);
        if (!grown)
            return NULL;
        claims->list = grown;
        claims->capacity = capacity;
    }
    struct claim *claim = &claims->list[claims->count++];
    memset(claim, 0, sizeof *claim);
    return claim;
}

static int add_line(
    struct claims *claims, const char *line, const char *path, int number, char *error, int size)
{
    struct claim *claim = new_claim(claims);
    if (claim)
        claim->line = strdup(line);
    const char *problem = claim && claim->line ? parse_claim(claim) : "memory is short";
    for (int i = 0; !problem && &claims->list[i] != claim; i++)
        if (!strcmp(claims->list[i].id, claim->id))
            problem = "another claim has this id";
    if (problem)
        snprintf(error, (size_t)size, "%s:%d: %s", path, number, problem);
    return problem ? -1 : 0;
}

int claims_read(const char *path, struct claims *claims, char *error, int size)
{
    char *line = NULL;
    size_t room = 0;
    int number = 0, status = 0;
    memset(claims, 0, sizeof *claims);
    FILE *file = fopen(path, "r");
    if (!file) {
        snprintf(error, (size_t)size, "%s: cannot be read", path);
        return -1;
    }
    while (!status && getline(&line, &room, file) >= 0) {
        number++;
        line[strcspn(line, "\r\n")] = '\0';
        if (line[0] && line[0] != '#')
            status = add_line(claims, line, path, number, error, size);
    }
    if (!status && ferror(file)) {
        snprintf(error, (size_t)size, "%s: cannot be read", path);
        status = -1;
    }
    free(line);
    fclose(file);
    return status;
}

void claims_free(struct claims *claims)
{
    for (int i = 0; i < claims->count; i++)
        free(claims->list[i].line);
    free(claims->list);
    memset(claims, 0, sizeof *claims);
}

const char *claim_kind_name(enum claim_kind kind)
{
    return kind_names[kind];
}
