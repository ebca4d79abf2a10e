/* Makes variants of a choice. The chooser predicts a variant that reads, selects late or has another algorithm. It does
   not predict one that differs only in cuts or stores, because that would take longer than many calls. */
#include "backend/tuning/variants.h"
#include "backend/base/status.h"
#include "backend/collectives/collectives.h"
#include "backend/host/segment.h"

enum { LEAST_TILE = 16 << 10, MOST_TILE = 4 << 20, MOST_SLOTS = 4, STORED_AT_LEAST = 4 << 10 };

/* Repeats the choice for the same call as if the tensors lay in `placement`. */
static tutti_status variant_choose_for_placement(const struct variant_limits *limits, const struct question *question,
    enum placement_kind placement, bool must_read, struct choice *out)
{
    struct question other = *question;
    other.placement = placement;
    other.must_read = must_read;
    return chooser_make_choice(limits->chooser, &other, out);
}
/* A call that looks first waits for all ranks. So it does not replace a one-sided operation (execute/tracks.h): the
   time of a single call does not show what one-sidedness saves. */
static tutti_status variant_select_late(const struct variant_limits *limits, const struct question *question,
    struct choice *out, bool *exists)
{
    size_t part = question->message_bytes / (size_t)limits->chooser->layout->largest;
    bool awaits_all = !collective_has_root(question->collective) || part > TRACK_BYTES;
    if (!placement_is_shared(limits->could_be) || question->placement != TENSORS_PRIVATE || !awaits_all)
        return TUTTI_OK;
    TRY(chooser_make_choice(limits->chooser, question, out));
    bool is_dear = 1 + choice_cost_of_late_selection(limits->chooser, out) > limits->most;
    if (choice_selects_late(limits->chooser, out) || is_dear) return TUTTI_OK;
    *exists = true;
    TRY(variant_choose_for_placement(limits, question, limits->could_be, false, out));
    out->selects_late = true;
    return TUTTI_OK;
}
/* Private tensors can be opened for reading if the call looks first anyway. */
static tutti_status variant_toggle_reading(const struct variant_limits *limits, const struct question *question,
    struct choice *choice, bool *exists)
{
    struct choice least;
    bool open = placement_is_open(question->placement),
         could_be = question->placement == TENSORS_PRIVATE && placement_is_open(limits->could_be);
    if (question->must_read || !(open || could_be)) return TUTTI_OK;
    TRY(chooser_make_choice(limits->chooser, question, &least));
    bool may_read = open || choice_selects_late(limits->chooser, &least);
    if (choice->reads_private) TRY(variant_choose_for_placement(limits, question, TENSORS_PRIVATE, false, choice));
    else
        TRY(variant_choose_for_placement(limits, question, open ? question->placement : limits->could_be, true,
            choice));
    *exists = may_read && choice->cost <= limits->most * least.cost;
    return TUTTI_OK;
}
/* Makes the choice of another algorithm as it is predicted, if that cost is not too high. */
static tutti_status variant_change_algorithm(const struct variant_limits *limits, const struct question *question,
    const struct choice *from, int number, struct choice *out, bool *exists)
{
    struct question asked = *question;
    struct choice least;
    for (const struct algorithm *algorithm = collectives_table; algorithm->name; algorithm++) {
        if (algorithm->collective != question->collective || algorithm == from->algorithm
            || !chooser_considers_algorithm(limits->chooser, algorithm) || number-- > 0)
            continue;
        asked.algorithm = algorithm;
        TRY(chooser_make_choice(limits->chooser, question, &least));
        TRY(chooser_make_choice(limits->chooser, &asked, out));
        out->selects_late = from->selects_late;
        *exists = out->cost <= limits->most * least.cost;
        return TUTTI_OK;
    }
    return TUTTI_OK;
}
/* A tile as large as the message is the only one. It has no others in flight, and cannot be larger. */
static bool variant_change_cutting(const struct question *question, int change, struct choice *choice)
{
    bool one = choice->tile_bytes >= question->message_bytes;
    size_t tile = choice->tile_bytes;
    while (tile / 2 >= question->message_bytes) tile /= 2;
    switch (change) {
    case 0: choice->tile_bytes = 2 * tile; return !one && 2 * tile <= MOST_TILE;
    case 1: choice->tile_bytes = tile / 2; return tile / 2 >= LEAST_TILE;
    case 2: choice->tile_bytes = tile / 4; return tile / 4 >= LEAST_TILE;
    case 3: choice->slots++; return !one && choice->slots <= MOST_SLOTS;
    default: choice->slots--; return !one && choice->slots >= 2;
    }
}
tutti_status choice_make_variant(const struct variant_limits *limits, const struct question *question,
    const struct choice *from, int number, struct choice *out, bool *exists)
{
    struct choice found = *from;
    *exists = false;
    if (number == 0) {
        if (limits->paced && question->message_bytes >= STORED_AT_LEAST)
            TRY(choice_writes_slots(limits->chooser, question, &found, exists));
        found.ordinary = !found.ordinary;
    } else if (number == 1) {
        TRY(choice_writes_slots(limits->chooser, question, &found, exists));
        found.short_laps = !found.short_laps;
    } else if (number < READ_VARIANT) {
        *exists = variant_change_cutting(question, number - 2, &found);
    } else if (number == READ_VARIANT) {
        TRY(variant_toggle_reading(limits, question, &found, exists));
    } else if (number == LATE_SELECTION_VARIANT) {
        TRY(variant_select_late(limits, question, &found, exists));
    } else {
        TRY(variant_change_algorithm(limits, question, from, number - FIRST_ALGORITHM, &found, exists));
    }
    *out = found;
    return TUTTI_OK;
}
