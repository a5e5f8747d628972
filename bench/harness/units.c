/* Reading and writing numbers for people.
 *
 * Counts are read in integer arithmetic from end to end, so that 9007199254740993 stays what it is
 * and a number beyond int64_t is told apart from one that is merely large. */
#include "bench/harness/units.h"
#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The longest number anyone writes; longer text is not a number. */
#define NUMBER_MAX 64

/* A number as written: sign * digits * 10^exponent * 2^shift. */
struct decimal {
    bool negative, too_large;
    uint64_t digits;
    int exponent, shift;
};

static const char *read_digits(const char *at, struct decimal *number, int exponent_step, int *read)
{
    for (*read = 0; isdigit((unsigned char)*at); at++, ++*read) {
        uint64_t digit = (uint64_t)(*at - '0');
        if (number->digits > (UINT64_MAX - digit) / 10)
            number->too_large = true;
        else
            number->digits = number->digits * 10 + digit;
        number->exponent += exponent_step;
    }
    return at;
}

/* Returns where reading ended, or NULL when the text starts no number. */
static const char *read_decimal(const char *at, struct decimal *number)
{
    int whole, fraction = 0;
    memset(number, 0, sizeof *number);
    if (*at == '-' || *at == '+')
        number->negative = *at++ == '-';
    at = read_digits(at, number, 0, &whole);
    if (*at == '.')
        at = read_digits(at + 1, number, -1, &fraction);
    if (whole + fraction == 0)
        return NULL;
    if (*at == 'e' || *at == 'E') {
        char *end;
        if (!isdigit((unsigned char)at[1]) &&
            !(strchr("+-", at[1]) && isdigit((unsigned char)at[2])))
            return NULL;
        long exponent = strtol(at + 1, &end, 10);
        /* Far beyond any int64_t either way, and safe to add to. */
        if (exponent > 1000 || exponent < -1000)
            exponent = exponent > 0 ? 1000 : -1000;
        number->exponent += (int)exponent;
        at = end;
    }
    static const char suffixes[] = "KMG";
    const char *suffix = *at ? strchr(suffixes, *at) : NULL;
    if (suffix) {
        number->shift = 10 * (int)(suffix - suffixes + 1);
        at++;
    }
    return at;
}

static bool terminate(const char *text, int length, char copy[NUMBER_MAX])
{
    size_t count = length < 0 ? strlen(text) : (size_t)length;
    if (!count || count >= NUMBER_MAX)
        return false;
    memcpy(copy, text, count);
    copy[count] = '\0';
    return true;
}

enum units_status units_parse_count(const char *text, int length, int64_t *value)
{
    char copy[NUMBER_MAX];
    struct decimal number;
    if (!terminate(text, length, copy))
        return UNITS_NOT_A_NUMBER;
    const char *end = read_decimal(copy, &number);
    if (!end || *end)
        return UNITS_NOT_A_NUMBER;
    if (number.too_large)
        return UNITS_TOO_LARGE;
    uint64_t magnitude = number.digits;
    if (number.shift && magnitude >> (64 - number.shift))
        return UNITS_TOO_LARGE;
    magnitude <<= number.shift;
    for (; number.exponent > 0 && magnitude; number.exponent--) {
        if (magnitude > UINT64_MAX / 10)
            return UNITS_TOO_LARGE;
        magnitude *= 10;
    }
    for (; number.exponent < 0 && magnitude; number.exponent++) {
        if (magnitude % 10)
            return UNITS_NOT_WHOLE;
        magnitude /= 10;
    }
    if (magnitude > INT64_MAX)
        return UNITS_TOO_LARGE;
    *value = number.negative ? -(int64_t)magnitude : (int64_t)magnitude;
    return UNITS_OK;
}

enum units_status units_parse_real(const char *text, int length, double *value)
{
    char copy[NUMBER_MAX];
    struct decimal number;
    if (!terminate(text, length, copy))
        return UNITS_NOT_A_NUMBER;
    /* strtod alone would also take "inf", "nan" and hexadecimal. */
    const char *end = read_decimal(copy, &number);
    if (!end || *end || number.shift)
        return UNITS_NOT_A_NUMBER;
    *value = strtod(copy, NULL);
    return isfinite(*value) ? UNITS_OK : UNITS_TOO_LARGE;
}

/* Digits after the point that make four significant ones. */
static int decimals_of(double value)
{
    return value < 9.9995 ? 3 : value < 99.995 ? 2 : value < 999.95 ? 1 : 0;
}

void units_bytes(int64_t bytes, char *text, int size)
{
    static const char *const names[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes / 1024;
    int unit = 0;
    if (bytes > -1024 && bytes < 1024) {
        snprintf(text, (size_t)size, "%lld B", (long long)bytes);
        return;
    }
    for (; fabs(value) >= 1023.5 && unit < 5; unit++)
        value /= 1024;
    snprintf(text, (size_t)size, "%.*f %s", decimals_of(fabs(value)), value, names[unit]);
}

struct second_unit {
    double scale;
    const char *name;
};

static struct second_unit second_unit(double seconds)
{
    if (seconds >= 0.9999)
        return (struct second_unit){1, "s"};
    if (seconds >= 0.9999e-3)
        return (struct second_unit){1e3, "ms"};
    if (seconds >= 0.9999e-6)
        return (struct second_unit){1e6, "us"};
    return (struct second_unit){1e9, "ns"};
}

void units_seconds(double seconds, char *text, int size)
{
    struct second_unit unit = second_unit(seconds);
    double value = seconds * unit.scale;
    snprintf(text, (size_t)size, "%.*f %s", decimals_of(value), value, unit.name);
}

void units_seconds_range(double low, double high, char *text, int size)
{
    struct second_unit unit = second_unit(high);
    int decimals = decimals_of(high * unit.scale);
    snprintf(text, (size_t)size, "%.*f..%.*f %s", decimals, low * unit.scale, decimals,
        high * unit.scale, unit.name);
}

void units_rate(double value, const char *unit, char *text, int size)
{
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P"};
    int prefix = 0;
    for (; value >= 999.95 && prefix < 5; prefix++)
        value /= 1000;
    snprintf(text, (size_t)size, "%.*f %s%s", decimals_of(value), value, prefixes[prefix], unit);
}
