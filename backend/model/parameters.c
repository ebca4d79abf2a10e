/* The table of machine parameters: their names, units, typical values and bounds. */
#include "backend/base/log.h"
#include "backend/model/machine.h"
#include <stdlib.h>
#include <string.h>

static const struct machine_row rows[] = {
#define X(name, unit, typical, least, most, help) { #name, unit, help, typical, least, most },
    MACHINE_PARAMETERS(X)
#undef X
};
enum { ROWS = sizeof rows / sizeof *rows };
_Static_assert(sizeof(struct machine) == ROWS * sizeof(double), "every member is a parameter");

int machine_get_rows(const struct machine_row **out)
{
    *out = rows;
    return ROWS;
}
double machine_get_parameter(const struct machine *machine, int row) { return (&machine->l2)[row]; }
void machine_set_parameter(struct machine *machine, int row, double value) { (&machine->l2)[row] = value; }
struct machine machine_typical(void)
{
    struct machine machine;
    for (int i = 0; i < ROWS; i++) machine_set_parameter(&machine, i, rows[i].typical);
    return machine;
}
void machine_copy_network_costs(struct machine *machine, const struct machine *from)
{
    machine->message = from->message;
    machine->announced = from->announced;
    machine->wire = from->wire;
}
bool machine_is_within_bounds(const struct machine *machine)
{
    for (int i = 0; i < ROWS; i++) {
        double value = machine_get_parameter(machine, i);
        /* NaN is outside the bounds, too. */
        if (!(value >= rows[i].least && value <= rows[i].most)) return false;
    }
    return true;
}
/* Returns the row of the parameter with a name of `length` characters, or ROWS for an unknown name. */
static int machine_find_row(const char *name, size_t length)
{
    int i = 0;
    while (i < ROWS && (strlen(rows[i].name) != length || strncmp(rows[i].name, name, length))) i++;
    return i;
}
void machine_override_parameters(struct machine *machine, const char *parameters)
{
    for (const char *at = parameters, *end; *at; at = *end ? end + 1 : end) {
        end = at + strcspn(at, ",");
        size_t length = strcspn(at, "=,");
        int row = machine_find_row(at, length);
        char *rest = NULL;
        double value = at[length] == '=' ? strtod(at + length + 1, &rest) : 0;
        if (row < ROWS && rest == end && value >= rows[row].least && value <= rows[row].most)
            machine_set_parameter(machine, row, value);
        else
            LOG(WARN,
                "TUTTI_MACHINE has %.*s; allowed is name=value, with a name that tutti model lists and a value "
                "within its bounds",
                (int)(end - at), at);
    }
}
