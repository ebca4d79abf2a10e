/* Looks up collectives and algorithms by name, and suggests the nearest name for an unknown one. */
#include "backend/tuning/algorithm_names.h"
#include "backend/base/settings.h"
#include "backend/base/status.h"
#include <stdio.h>
#include <string.h>

const char *algorithm_name_at_index(const char *collective, int index)
{
    for (const struct algorithm *algorithm = collectives_table; algorithm->name; algorithm++)
        if (collective && strcmp(collective_name(algorithm->collective), collective) == 0 && index-- == 0)
            return algorithm->name;
    return NULL;
}
/* For settings_find_nearest: algorithm_next_name returns the names of the algorithms of one collective,
   collective_next_name those of all collectives; NULL after the last. */
static const char *algorithm_next_name(void *collective, int index)
{
    return algorithm_name_at_index(collective, index);
}
static const char *collective_next_name(void *unused, int index)
{
    (void)unused;
    return index < COLLECTIVE_COUNT ? collective_name((enum collective)index) : NULL;
}
/* Fails because `name` is unknown. what: what it should name; nearest: the nearest known name, or NULL. */
static tutti_status name_fail_unknown(const char *what, const char *name, const char *nearest)
{
    return status_fail(TUTTI_INVALID_ARGUMENT, "unknown %s \"%s\"%s%s%s", what, name,
        nearest ? ", did you mean \"" : "", nearest ? nearest : "", nearest ? "\"?" : "");
}
tutti_status algorithm_find_by_name(const char *collective, const char *name, const struct algorithm **out)
{
    int number = 0;
    while (number < COLLECTIVE_COUNT && strcmp(collective_name((enum collective)number), collective) != 0) number++;
    if (number == COLLECTIVE_COUNT)
        return name_fail_unknown("collective", collective,
            settings_find_nearest(collective, collective_next_name, NULL));
    const struct algorithm *found = collectives_find_algorithm((enum collective)number, name);
    if (!found) {
        char what[64];
        snprintf(what, sizeof what, "%s algorithm", collective);
        return name_fail_unknown(what, name,
            settings_find_nearest(name, algorithm_next_name, (void *)(uintptr_t)collective));
    }
    *out = found;
    return TUTTI_OK;
}
tutti_status algorithms_parse_list(const char *text, _Atomic(const struct algorithm *) chosen[COLLECTIVE_COUNT])
{
    char copy[512], *rest = NULL;
    if (strlen(text) >= sizeof copy)
        return status_fail(TUTTI_INVALID_ARGUMENT, "the list of algorithms is longer than %zu bytes", sizeof copy - 1);
    strcpy(copy, text);
    for (char *entry = strtok_r(copy, ", ", &rest); entry; entry = strtok_r(NULL, ", ", &rest)) {
        char *equals = strchr(entry, '=');
        const struct algorithm *algorithm;
        if (!equals)
            return status_fail(TUTTI_INVALID_ARGUMENT, "\"%s\" should read collective=algorithm, as in allreduce=ring",
                entry);
        *equals = 0;
        TRY(algorithm_find_by_name(entry, equals + 1, &algorithm));
        atomic_store(&chosen[algorithm->collective], algorithm);
    }
    return TUTTI_OK;
}
tutti_status algorithms_read_settings(_Atomic(const struct algorithm *) chosen[COLLECTIVE_COUNT])
{
    const char *given = settings_get()->algorithm;
    tutti_status status = algorithms_parse_list(given, chosen);
    if (status == TUTTI_OK) return status;
    char why[STATUS_DETAIL_BYTES / 2];
    snprintf(why, sizeof why, "%.500s", status_detail());
    return status_fail(status, "TUTTI_ALGORITHM=%.200s: %s; tutti algorithms lists all of them", given, why);
}
tutti_status algorithm_find_for_collective(enum collective collective, const char *text, const struct algorithm **out)
{
    if (!strchr(text, '=')) return algorithm_find_by_name(collective_name(collective), text, out);
    _Atomic(const struct algorithm *) chosen[COLLECTIVE_COUNT] = { NULL };
    TRY(algorithms_parse_list(text, chosen));
    *out = chosen[collective];
    return TUTTI_OK;
}
