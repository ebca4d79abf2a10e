/* Fuzzes a variable of the environment, and all code that reads its text. */
#include "backend/base/settings.h"
#include "backend/join/contacts.h"
#include "backend/join/hosts.h"
#include "backend/model/machine.h"
#include "backend/transports/fabrics.h"
#include "backend/tuning/algorithm_names.h"
#include "tests/fuzz/input.h"
#include <stdlib.h>

enum { MOST_TEXT = 256, MOST_RANKS = 64 };

int LLVMFuzzerInitialize(int *count, char ***arguments)
{
    (void)count;
    (void)arguments;
    clearenv();
    setenv("TUTTI_LOG", "error", 1);
    return 0;
}
static void read_all(const struct settings *s, int ranks)
{
    _Atomic(const struct algorithm *) chosen[COLLECTIVE_COUNT] = { NULL };
    struct machine machine = machine_typical();
    char unknown[FABRIC_TEXT_BYTES], text[FABRIC_TEXT_BYTES];
    int hosts[MOST_RANKS];
    algorithms_read_settings(chosen);
    machine_override_parameters(&machine, s->parameters);
    FUZZ_CHECK(machine_is_within_bounds(&machine));
    transport_check();
    fabrics_print_names(fabrics_parse_names(s->transport, unknown), text);
    hosts_setting_number(s->hosts, ranks);
    if (hosts_parse_setting(s->hosts, ranks, hosts) != TUTTI_OK) return;
    for (int r = 0; r < ranks; r++) FUZZ_CHECK(hosts[r] >= 0 && hosts[r] < ranks);
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, size };
    const struct settings_row *rows;
    char text[MOST_TEXT], name[MOST_TEXT];
    const char *variable;
    int count = settings_table(&rows), which = input_byte(&in) % (count + 1), ranks = 1 + input_byte(&in) % MOST_RANKS;
    input_text(&in, text, sizeof text);
    if (which < count) variable = rows[which].variable;
    else {
        memcpy(name, "TUTTI_", 7);
        strncat(name, text, sizeof name - 8);
        name[strcspn(name, "=")] = 0;
        variable = name;
    }
    setenv(variable, text, 1);
    settings_reload();
    read_all(settings_get(), ranks);
    unsetenv(variable);
    setenv("TUTTI_LOG", "error", 1);
    return 0;
}
