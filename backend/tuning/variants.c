/* Makes variants of a choice. The chooser predicts a variant that reads, selects late or has another algorithm. It does
   not predict one that differs only in cuts or stores, because that would take longer than many calls. */
#include "backend/tuning/variants.h"
#include "backend/base/status.h"
#include "backend/collectives/collectives.h"
#include "backend/host/segment.h"

enum { LEAST_TILE = 16 << 10, MOST_TILE = 4 << 20, MOST_SLOTS = 4, STORED_AT_LEAST = 4 << 10 };

/* Makes the choice for the same call as if the tensors lay in `placement`. */
static tutti_status variant_choose_for_placement(const struct variant_limits *limits, const struct question *question,
    enum placement_kind placement, bool must_read, struct choice *out)
{
    struct question other = *question;
    other.placement = placement;
    other.must_read = must_read;
    return chooser_make_choice(limits->chooser, &other, out);
}
/* Sets *out to late selection of the choice for the possible placement. *exists stays false if tensors cannot be
   shared, the call selects late anyway, or the cost is too high. A call that selects late waits for all ranks. So it
   does not replace a one-sided operation (execute/tracks.h): the time of a single call does not show what one-sidedness
   saves. */
static tutti_status variant_select_late(const struct variant_limits *limits, const struct question *question,
    struct choice *out, bool *exists)
{
    size_t part = question->message_bytes / (size_t)limits->chooser->layout->largest;
    bool awaits_all = !collective_has_root(question->collective) || part > TRACK_BYTES;
    if (!placement_is_shared(limits->possible) || question->placement != TENSORS_PRIVATE || !awaits_all)
        return TUTTI_OK;
    TRY(chooser_make_choice(limits->chooser, question, out));
    bool costs_too_much = 1 + choice_cost_of_late_selection(limits->chooser, out) > limits->max_cost_ratio;
    if (choice_selects_late(limits->chooser, out) || costs_too_much) return TUTTI_OK;
    *exists = true;
    TRY(variant_choose_for_placement(limits, question, limits->possible, false, out));
    out->selects_late = true;
    return TUTTI_OK;
}
/* Changes whether *choice reads open tensors. Private tensors can be opened for reading if the call selects late
   anyway. */
static tutti_status variant_toggle_reading(const struct variant_limits *limits, const struct question *question,
    struct choice *choice, bool *exists)
{
    struct choice least;
    bool is_open = placement_is_open(question->placement),
         may_open = question->placement == TENSORS_PRIVATE && placement_is_open(limits->possible);
    if (question->must_read || !(is_open || may_open)) return TUTTI_OK;
    TRY(chooser_make_choice(limits->chooser, question, &least));
    bool may_read = is_open || choice_selects_late(limits->chooser, &least);
    if (choice->reads_private) TRY(variant_choose_for_placement(limits, question, TENSORS_PRIVATE, false, choice));
    else
        TRY(variant_choose_for_placement(limits, question, is_open ? question->placement : limits->possible, true,
            choice));
    *exists = may_read && choice->cost <= limits->max_cost_ratio * least.cost;
    return TUTTI_OK;
}
/* Makes the choice with another algorithm, the number-th other candidate from 0. *exists: there is one, and its cost is
   not too high. */
static tutti_status variant_change_algorithm(const struct variant_limits *limits, const struct question *question,
    const struct choice *from, int number, struct choice *out, bool *exists)
{
    struct question other = *question;
    struct choice least;
    for (const struct algorithm *algorithm = collectives_table; algorithm->name; algorithm++) {
        if (algorithm->collective != question->collective || algorithm == from->algorithm
            || !chooser_considers_algorithm(limits->chooser, algorithm) || number-- > 0)
            continue;
        other.algorithm = algorithm;
        TRY(chooser_make_choice(limits->chooser, question, &least));
        TRY(chooser_make_choice(limits->chooser, &other, out));
        out->selects_late = from->selects_late;
        out->ordinary_stores = from->ordinary_stores;
        out->short_ring = from->short_ring;
        *exists = out->cost <= limits->max_cost_ratio * least.cost;
        return TUTTI_OK;
    }
    return TUTTI_OK;
}
/* Applies change 0 to 4 of the cutting: tile doubled, halved or quartered, one slot more or less. False: the result is
   out of range. If one tile has the whole message, only smaller tiles are a change. */
static bool variant_change_cutting(const struct question *question, int change, struct choice *choice)
{
    bool is_one_tile = choice->tile_bytes >= question->message_bytes;
    size_t tile = choice->tile_bytes;
    while (tile / 2 >= question->message_bytes) tile /= 2;
    switch (change) {
    case 0: choice->tile_bytes = 2 * tile; return !is_one_tile && 2 * tile <= MOST_TILE;
    case 1: choice->tile_bytes = tile / 2; return tile / 2 >= LEAST_TILE;
    case 2: choice->tile_bytes = tile / 4; return tile / 4 >= LEAST_TILE;
    case 3: choice->slots++; return !is_one_tile && choice->slots <= MOST_SLOTS;
    default: choice->slots--; return !is_one_tile && choice->slots >= 2;
    }
}
tutti_status choice_make_variant(const struct variant_limits *limits, const struct question *question,
    const struct choice *from, int number, struct choice *out, bool *exists)
{
    struct choice found = *from;
    *exists = false;
    if (number == 0) {
        if (limits->is_paced && question->message_bytes >= STORED_AT_LEAST)
            TRY(choice_writes_slots(limits->chooser, question, &found, exists));
        found.ordinary_stores = !found.ordinary_stores;
    } else if (number == 1) {
        TRY(choice_writes_slots(limits->chooser, question, &found, exists));
        found.short_ring = !found.short_ring;
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
