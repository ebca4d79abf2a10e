/* Text and JSON that are written piece by piece into a caller's buffer of fixed size. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* `length` is that of the whole text. The buffer has as much of it as fits into `capacity` bytes, terminated. */
struct text_buffer { char *at; size_t capacity, length; };
/* Appends formatted text. */
void text_append(struct text_buffer *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Appends a JSON string. Bytes that are no UTF-8 become '?'. */
void text_append_string(struct text_buffer *text, const char *s);
/* Appends "name": "value" as JSON, and then the text `after`. */
void text_append_pair(struct text_buffer *text, const char *name, const char *value, const char *after);
/* Appends "name": milliseconds as seconds, in any locale. Times below 0 become 0. */
void text_append_seconds(struct text_buffer *text, const char *name, int64_t ms);
