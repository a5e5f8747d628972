/* Numbers as people write and read them.
 *
 * Read: a count is a whole number, optionally with a decimal exponent and one of K, M, G (powers of
 * 1024): 4096, 4K, 1.5M, 100e6. Written: bytes in powers of 1024, seconds and rates in powers of
 * 1000, four significant digits. */
#pragma once
#include <stdint.h>

enum units_status {
    UNITS_OK,
    UNITS_NOT_A_NUMBER,
    UNITS_NOT_WHOLE, /* a number, but 1.5 or 0.1K */
    UNITS_TOO_LARGE  /* beyond int64_t */
};

/* The whole of `text` must be the number. `length` < 0: up to the terminator. */
enum units_status units_parse_count(const char *text, int length, int64_t *value);

/* A finite decimal number. */
enum units_status units_parse_real(const char *text, int length, double *value);

/* "12.03 MiB", "512 B" */
void units_bytes(int64_t bytes, char *text, int size);

/* "12.34 ms", "950.2 ns" */
void units_seconds(double seconds, char *text, int size);

/* "12.10..12.62 ms": both ends in the unit that suits the larger. */
void units_seconds_range(double low, double high, char *text, int size);

/* "123.4 GFLOP/s" for value 123.4e9 and unit "FLOP/s" */
void units_rate(double value, const char *unit, char *text, int size);
