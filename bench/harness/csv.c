/* CSV as RFC 4180 has it: a field with a comma, a quote or a line end stands in quotes. */
#include "bench/harness/csv.h"
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include "bench/harness/result.h"

void csv_first(FILE *out, const char *text)
{
    if (!text[strcspn(text, ",\"\r\n")]) {
        fputs(text, out);
        return;
    }
    fputc('"', out);
    for (; *text; text++) {
        if (*text == '"')
            fputc('"', out);
        fputc(*text, out);
    }
    fputc('"', out);
}

void csv_text(FILE *out, const char *text)
{
    fputc(',', out);
    csv_first(out, text);
}

void csv_int(FILE *out, int64_t value)
{
    if (value == ABSENT)
        fputc(',', out);
    else
        fprintf(out, ",%lld", (long long)value);
}

void csv_real(FILE *out, double value)
{
    if (isfinite(value))
        fprintf(out, ",%.9g", value);
    else
        fputc(',', out);
}

void csv_figure(FILE *out, double value)
{
    if (isfinite(value))
        fprintf(out, ",%.15g", value);
    else
        fputc(',', out);
}

int csv_split(char *line, char **fields, int most)
{
    int count = 0;
    char *from = line, *to = line;
    for (bool more = true; more; count++) {
        bool quoted = *from == '"';
        char *field = to;
        from += quoted;
        while (*from && (quoted || *from != ',')) {
            if (quoted && *from == '"' && *++from != '"')
                quoted = false; /* the closing one; what follows it is taken as it is */
            else
                *to++ = *from++;
        }
        more = *from == ',';
        from += more;
        *to++ = '\0';
        if (count < most)
            fields[count] = field;
    }
    return count;
}
