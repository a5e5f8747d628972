/* Escaping and embedding for pages that open without a network. */
#include "bench/harness/html.h"
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Length of the UTF-8 sequence at `text`, 0 when it is none. Overlong forms, surrogates and what is
 * beyond U+10FFFF are none. */
static int utf8_length(const unsigned char *text)
{
    static const unsigned char continuation = 0x80;
    unsigned char first = text[0];
    int length = first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    if (first > 0xF4)
        return 0;
    for (int i = 1; i < length; i++) {
        if ((text[i] & 0xC0) != continuation)
            return 0;
    }
    bool overlong = (first == 0xE0 && text[1] < 0xA0) || (first == 0xF0 && text[1] < 0x90);
    bool beyond = (first == 0xED && text[1] >= 0xA0) || (first == 0xF4 && text[1] >= 0x90);
    return overlong || beyond ? 0 : length;
}

static const char *entity_of(unsigned char byte)
{
    switch (byte) {
    case '&':
        return "&amp;";
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '"':
        return "&quot;";
    case '\'':
        return "&#39;";
    default:
        return NULL;
    }
}

void html_text(struct new_file *page, const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    while (*at) {
        int length = utf8_length(at);
        const char *entity = entity_of(*at);
        bool control = (*at < 0x20 && *at != '\t' && *at != '\n') || *at == 0x7F;
        if (entity)
            new_file_print(page, "%s", entity);
        else if (!length)
            new_file_print(page, "\xEF\xBF\xBD");
        else if (!control)
            new_file_write(page, at, length);
        at += length ? length : 1;
    }
}

void html_cell(struct new_file *page, const char *tag, const char *text)
{
    new_file_print(page, "<%s>", tag);
    html_text(page, text);
    new_file_print(page, "</%s>", tag);
}

/* The bytes of a file with a terminator behind them, to be freed; NULL with errno. */
static unsigned char *bytes_of(const char *path, size_t *count)
{
    unsigned char *bytes = NULL;
    size_t room = 0;
    *count = 0;
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    do {
        unsigned char *grown = realloc(bytes, room = 2 * room + 65536);
        if (!grown) {
            free(bytes);
            fclose(file);
            errno = ENOMEM;
            return NULL;
        }
        bytes = grown;
        *count += fread(bytes + *count, 1, room - *count - 1, file);
    } while (*count == room - 1);
    bytes[*count] = '\0';
    bool failed = ferror(file);
    fclose(file);
    if (failed) {
        free(bytes);
        errno = EIO;
        return NULL;
    }
    return bytes;
}

int html_text_of_file(struct new_file *page, const char *path)
{
    size_t count;
    unsigned char *bytes = bytes_of(path, &count);
    if (!bytes)
        return -1;
    for (size_t i = 0; i < count; i++) {
        if (!bytes[i])
            bytes[i] = ' ';
    }
    html_text(page, (const char *)bytes);
    free(bytes);
    return 0;
}

int html_base64_of_file(struct new_file *page, const char *path)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t count;
    unsigned char *bytes = bytes_of(path, &count);
    if (!bytes)
        return -1;
    for (size_t i = 0; i < count; i += 3) {
        size_t there = count - i < 3 ? count - i : 3;
        unsigned group = (unsigned)bytes[i] << 16 | (there > 1 ? (unsigned)bytes[i + 1] << 8 : 0) |
                         (there > 2 ? bytes[i + 2] : 0u);
        char four[4] = {digits[group >> 18], digits[group >> 12 & 63],
            there > 1 ? digits[group >> 6 & 63] : '=', there > 2 ? digits[group & 63] : '='};
        new_file_write(page, four, 4);
    }
    free(bytes);
    return 0;
}
