/* Looks up collectives and algorithms by name, and suggests the nearest name for an unknown one. */
#include "backend/engine/names.h"
#include "backend/base/settings.h"
#include "backend/base/status.h"
#include <stdio.h>
#include <string.h>

const char *algorithm_name(const char *family, int index)
{
    for (const struct algorithm *a = collectives_table; a->name; a++)
        if (family && strcmp(family_name(a->family), family) == 0 && index-- == 0) return a->name;
    return NULL;
}
static const char *next_algorithm(void *family, int index) { return algorithm_name(family, index); }
static const char *next_family(void *unused, int index)
{
    (void)unused;
    return index < FAMILY_COUNT ? family_name((enum family)index) : NULL;
}
static tutti_status name_unknown(const char *what, const char *name, const char *near)
{
    return status_fail(TUTTI_INVALID_ARGUMENT, "unknown %s \"%s\"%s%s%s", what, name, near ? ", did you mean \"" : "",
        near ? near : "", near ? "\"?" : "");
}
tutti_status algorithm_by_name(const char *family, const char *name, const struct algorithm **out)
{
    int f = 0;
    while (f < FAMILY_COUNT && strcmp(family_name((enum family)f), family) != 0) f++;
    if (f == FAMILY_COUNT) return name_unknown("collective", family, settings_nearest(family, next_family, NULL));
    const struct algorithm *found = collectives_find((enum family)f, name);
    if (!found) {
        char what[64];
        snprintf(what, sizeof what, "%s algorithm", family);
        return name_unknown(what, name, settings_nearest(name, next_algorithm, (void *)(uintptr_t)family));
    }
    *out = found;
    return TUTTI_OK;
}
tutti_status algorithms_parse(const char *text, _Atomic(const struct algorithm *) chosen[FAMILY_COUNT])
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
        TRY(algorithm_by_name(entry, equals + 1, &algorithm));
        atomic_store(&chosen[algorithm->family], algorithm);
    }
    return TUTTI_OK;
}
tutti_status algorithms_of_settings(_Atomic(const struct algorithm *) chosen[FAMILY_COUNT])
{
    const char *given = settings_get()->algorithm;
    tutti_status status = algorithms_parse(given, chosen);
    if (status == TUTTI_OK) return status;
    char why[STATUS_DETAIL_BYTES / 2];
    snprintf(why, sizeof why, "%.500s", status_detail());
    return status_fail(status, "TUTTI_ALGORITHM=%.200s: %s; tutti algorithms lists all of them", given, why);
}
tutti_status algorithm_for(enum family family, const char *text, const struct algorithm **out)
{
    if (!strchr(text, '=')) return algorithm_by_name(family_name(family), text, out);
    _Atomic(const struct algorithm *) chosen[FAMILY_COUNT] = { NULL };
    TRY(algorithms_parse(text, chosen));
    *out = chosen[family];
    return TUTTI_OK;
}
