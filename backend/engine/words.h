/* Calls and causes in words. Whatever a declaration says that has come from elsewhere, the words are some. */
#pragma once
#include "backend/agree/agree.h"
#include "backend/engine/group.h"

enum { WORDS_BYTES = 240 };
void words_of_call(const struct declaration *call, char *out, size_t bytes);
/* Of two that disagree. */
void words_of_disagreement(const struct group *group, int rank, const struct declaration *call, int other,
    const struct declaration *its_call, char *out, size_t bytes);
/* where: " in" and what the rank does that has seen it, that waits; or nothing. */
void words_of_death(const struct group *group, int dead, int seer, const char *where, char *out, size_t bytes);
void words_of_leaving(const struct group *group, int gone, int waiter, const char *where, char *out, size_t bytes);
/* A verdict, for the user of this rank. */
void words_of_cause(const struct group *group, const struct agree_cause *cause, char *out, size_t bytes);
