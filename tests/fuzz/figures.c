/* Fuzzes the file that stores the machine parameters: parameters that are accepted are within their bounds, and are the
   same after they have been written and read again. */
#include "backend/model/kept.c"
#include "tests/fuzz/input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char identity[] = "tutti of this machine";
    struct input in = { data, size };
    struct machine machine = machine_typical(), again;
    char text[TEXT_BYTES];
    input_text(&in, text, sizeof text);
    if (machine_text_parse(text, identity, &machine)) FUZZ_CHECK(machine_is_within_bounds(&machine));
    for (int i = 0; i < (int)(sizeof machine / sizeof(double)); i++) {
        double figure;
        input_take(&in, &figure, sizeof figure);
        if (size % 2) machine_set_parameter(&machine, i, figure);
    }
    bool fits = machine_text_format(identity, &machine, text) > 0;
    if (fits && machine_is_within_bounds(&machine))
        FUZZ_CHECK(machine_text_parse(text, identity, &again) && memcmp(&machine, &again, sizeof again) == 0);
    return 0;
}
