/* Text into an HTML page: everything that came from outside goes through html_text, so that no file
 * name, label or message can become markup. */
#pragma once
#include "probe/new_file.h"

/* Escapes & < > " ' and drops what a page may not hold: control characters but tab and line end,
 * and bytes that are no UTF-8 (each becomes U+FFFD). Good for text and for quoted attributes. */
void html_text(struct new_file *page, const char *text);

/* Text between an opening and a closing tag of that name: <td>12</td>. */
void html_cell(struct new_file *page, const char *tag, const char *text);

/* A file as it is, as escaped text. 0, or -1 with errno. */
int html_text_of_file(struct new_file *page, const char *path);

/* A file as base64, for data: addresses. 0, or -1 with errno. */
int html_base64_of_file(struct new_file *page, const char *path);
