#include "backend/base/text_buffer.h"
#include "backend/base/text.h"
#include <stdarg.h>
#include <stdio.h>

void text_append(struct text_buffer *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    size_t room = text->length < text->capacity ? text->capacity - text->length : 0;
    int n = vsnprintf(room ? text->at + text->length : NULL, room, format, arguments);
    va_end(arguments);
    if (n > 0) text->length += (size_t)n;
}
void text_append_string(struct text_buffer *text, const char *s)
{
    text_append(text, "\"");
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') text_append(text, "\\%c", *s);
        else if ((unsigned char)*s < 32) text_append(text, "\\u%04x", (unsigned)*s);
        else {
            int length = character_length(s);
            text_append(text, "%.*s", length ? length : 1, length ? s : "?");
            s += length ? length - 1 : 0;
        }
    }
    text_append(text, "\"");
}
void text_append_pair(struct text_buffer *text, const char *name, const char *value, const char *after)
{
    text_append_string(text, name);
    text_append(text, ": ");
    text_append_string(text, value);
    text_append(text, "%s", after);
}
void text_append_seconds(struct text_buffer *text, const char *name, int64_t ms)
{
    if (ms < 0) ms = 0;
    text_append(text, "\"%s\": %lld.%03lld", name, (long long)(ms / 1000), (long long)(ms % 1000));
}
