/* Reads the environment once. Texts are copied, so later changes of the environment have no effect. */
#include "backend/base/settings.h"
#include "backend/base/log.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;
static const struct settings_row rows[] = {
#define X(field, variable, kind, value, range, help) { variable, value, range, help },
    SETTINGS_MAP(X)
#undef X
};
enum { ROWS = sizeof rows / sizeof *rows, NAME_BYTES = 64 };
static struct settings current;
static pthread_once_t once = PTHREAD_ONCE_INIT;

int settings_table(const struct settings_row **out)
{
    *out = rows;
    return ROWS;
}

/* Former names of settings. They are read for one release, with a warning. */
static const struct former_name {
    const char *old_name, *new_name;
} former_names[] = {
    { "TUTTI_PAUSES", "TUTTI_SPINS" },
    { "TUTTI_VERBS_SERVICE_LEVEL", "TUTTI_VERBS_SL" },
    { "TUTTI_VERBS_TRAFFIC_CLASS", "TUTTI_VERBS_TC" },
    { "TUTTI_VERBS_RETRIES", "TUTTI_VERBS_RETRY_CNT" },
    { "TUTTI_SILENCE_MS", "TUTTI_PEER_TIMEOUT_MS" },
    { "TUTTI_TRIALS", "TUTTI_TUNER" },
    { "TUTTI_FIGURES", "TUTTI_MACHINE" },
};
enum { FORMER_NAMES = sizeof former_names / sizeof *former_names };
const char *settings_read_variable(const char *variable)
{
    const char *given = getenv(variable);
    for (int i = 0; !given && i < FORMER_NAMES; i++)
        if (strcmp(former_names[i].new_name, variable) == 0) given = getenv(former_names[i].old_name);
    return given;
}

/* ---- nearest name ---- */
static int int_smallest_of_three(int a, int b, int c) { return a < b ? (a < c ? a : c) : (b < c ? b : c); }
/* Returns the Levenshtein distance of the first NAME_BYTES characters of two texts, computed row by row. */
static int text_edit_distance(const char *a, const char *b)
{
    int row[NAME_BYTES + 1], length = (int)strnlen(b, NAME_BYTES);
    for (int j = 0; j <= length; j++) row[j] = j;
    for (int i = 1; a[i - 1] && i <= NAME_BYTES; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= length; j++) {
            int change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = int_smallest_of_three(row[j] + 1, row[j - 1] + 1, change);
        }
    }
    return row[length];
}
const char *settings_find_nearest(const char *name, const char *(*candidate_at)(void *context, int index),
    void *context)
{
    const char *best = NULL, *candidate;
    int best_distance = (int)strlen(name) / 2 + 1;
    for (int i = 0; (candidate = candidate_at(context, i)) != NULL; i++) {
        int distance = text_edit_distance(name, candidate);
        if (distance < best_distance) {
            best = candidate;
            best_distance = distance;
        }
    }
    return best;
}

/* ---- reading ---- */
/* Returns the name of the setting in a row, or NULL after the last. It is a candidate_at of settings_find_nearest. */
static const char *settings_row_name(void *context, int index)
{
    (void)context;
    return index < ROWS ? rows[index].variable : NULL;
}
/* Returns true if the first `length` characters of `name` are the name of a setting. */
static bool settings_name_is_known(const char *name, size_t length)
{
    for (int i = 0; i < ROWS; i++)
        if (strlen(rows[i].variable) == length && strncmp(rows[i].variable, name, length) == 0) return true;
    return false;
}
/* Warns that an environment variable has a former name of a setting. Returns false if `name` is not such a name. */
static bool settings_warn_former(const char *name)
{
    int i = 0;
    while (i < FORMER_NAMES && strcmp(former_names[i].old_name, name) != 0) i++;
    if (i == FORMER_NAMES) return false;
    const char *new_name = former_names[i].new_name;
    if (getenv(new_name)) LOG(WARN, "%s is ignored, because %s, its new name, is set", name, new_name);
    else LOG(WARN, "%s is now called %s; the next version will not read the old name", name, new_name);
    return true;
}
/* Warns of environment variables TUTTI_… that are not settings, and names the nearest setting. */
static void settings_warn_unknown(void)
{
    for (char **entry = environ; entry && *entry; entry++) {
        const char *end = strchr(*entry, '=');
        if (strncmp(*entry, "TUTTI_", 6) != 0 || !end || settings_name_is_known(*entry, (size_t)(end - *entry)))
            continue;
        char name[NAME_BYTES] = "";
        memcpy(name, *entry, (size_t)(end - *entry) < NAME_BYTES - 1 ? (size_t)(end - *entry) : NAME_BYTES - 1);
        if (settings_warn_former(name)) continue;
        const char *nearest = settings_find_nearest(name, settings_row_name, NULL);
        LOG(WARN, "unknown setting %s%s%s%s", name, nearest ? ", did you mean " : "", nearest ? nearest : "",
            nearest ? "?" : "");
    }
}
/* Reads a setting of kind TEXT into *field. `value` is the default. */
static void read_TEXT(const char **field, const char *variable, const char *value, const char *range)
{
    (void)range;
    const char *given = settings_read_variable(variable);
    /* A test may have read the settings before. */
    if (*field && strcmp(*field, value) != 0) free((void *)(uintptr_t)*field);
    *field = given && strcmp(given, value) != 0 ? strdup(given) : value;
    if (!*field) *field = value;
}
/* Returns true if the number is in a range that the table has as a text: "0 to 8" or "1 or more". */
static bool settings_number_is_within(int64_t number, const char *range)
{
    char *end;
    int64_t smallest = strtoll(range, &end, 10), largest = INT64_MAX;
    if (strncmp(end, " to ", 4) == 0) largest = strtoll(end + 4, NULL, 10);
    return number >= smallest && number <= largest;
}
/* Reads a setting of kind NUMBER into *field. Warns of a value that is not a number in `range`, and uses the default
   (`value`). */
static void read_NUMBER(int64_t *field, const char *variable, const char *value, const char *range)
{
    const char *given = settings_read_variable(variable);
    char *end = NULL;
    errno = 0;
    *field = strtoll(given ? given : value, &end, 10);
    const char *problem = !given                             ? NULL
        : end == given || *end                               ? "is not a whole number"
        : errno || !settings_number_is_within(*field, range) ? "is out of range"
                                                             : NULL;
    if (!problem) return;
    LOG(WARN, "%s=%s %s (allowed: %s); using %s", variable, given, problem, range, value);
    *field = strtoll(value, NULL, 10);
}
/* Reads all settings from the environment (X-list SETTINGS_MAP). */
static void settings_load(void)
{
#define X(field, variable, kind, value, range, help) read_##kind(&current.field, variable, value, range);
    SETTINGS_MAP(X)
#undef X
    int level = log_level_parse(current.log);
    if (level >= 0) log_limit = level;
    else LOG(WARN, "TUTTI_LOG=%s is not a level (allowed: error, warn, info, debug); using warn", current.log);
    settings_warn_unknown();
}
void settings_reload(void) { settings_load(); }
const struct settings *settings_get(void)
{
    pthread_once(&once, settings_load);
    return &current;
}
