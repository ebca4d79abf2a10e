/* Captures what a function writes to standard error. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

static char said_text[4096];
/* Calls the function, and returns what it wrote to standard error, valid until the next call. One thread at a time. */
static inline const char *said_by(void (*call)(void))
{
    FILE *file = tmpfile();
    int before = dup(STDERR_FILENO);
    if (!file || before < 0) return "standard error could not be captured";
    fflush(stderr);
    dup2(fileno(file), STDERR_FILENO);
    call();
    dup2(before, STDERR_FILENO);
    close(before);
    rewind(file);
    said_text[fread(said_text, 1, sizeof said_text - 1, file)] = 0;
    fclose(file);
    return said_text;
}
