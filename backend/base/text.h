/* Checks of texts, which other processes may have sent. */
#pragma once
#include <stddef.h>

/* Returns the bytes of the UTF-8 character at which a terminated text begins; 0 if it is none. */
static inline int character_length(const char *text)
{
    const unsigned char *c = (const unsigned char *)text;
    int length = c[0] < 0x80 ? 1 : c[0] < 0xc2 ? 0 : c[0] < 0xe0 ? 2 : c[0] < 0xf0 ? 3 : c[0] < 0xf5 ? 4 : 0;
    for (int i = 1; i < length; i++)
        if ((c[i] & 0xc0) != 0x80) return 0;
    return length;
}
/* Replaces bytes that are no UTF-8 by '?'. A text that was cut to the room of a buffer may end, or have an end in its
   middle, inside of a character. Python refuses such a text. */
static inline void text_replace_invalid(char *text)
{
    for (int length; *text; text += length) {
        length = character_length(text);
        if (!length) *text = '?';
        length += !length;
    }
}
/* Terminates the text in a buffer of `bytes` bytes, and replaces its control characters by '?'. Errors and logs show
   such texts, and a control character could forge a line of a log or drive a terminal. */
static inline void text_make_printable(char *text, size_t bytes)
{
    text[bytes - 1] = 0;
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f) *text = '?';
}
