/* Texts that another process has sent. */
#pragma once
#include <stddef.h>

/* Terminates the text in a buffer of `bytes` bytes, and replaces its control characters by '?'. Errors and logs show
   such texts, and a control character could forge a line of a log or drive a terminal. */
static inline void text_make_printable(char *text, size_t bytes)
{
    text[bytes - 1] = 0;
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f) *text = '?';
}
