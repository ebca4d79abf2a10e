/* Finds the largest numbers of an array in two passes, with counters as the only memory. The first pass makes a
 * histogram of the largest of every few numbers. It gives a bound that at least `kept` numbers reach, and few more. The
 * second pass makes a histogram of the numbers that reach the bound, which gives a finer bound. It also lists these
 * numbers. If the list has no room, a third pass finds them again. With a given bound, one pass lists the numbers that
 * reach it. If they are too many, the largest are packed instead. The packed form has values, then places, which ascend
 * by strip. */
#include "kernels/compress.h"

/* A strip of numbers is a matrix of ROWS rows and COLUMNS columns. A histogram has BINS bins. */
enum { STRIP = PACKING_STRIP, COLUMNS = 16, ROWS = STRIP / COLUMNS, BINS = 8192 };
/* Bins have 1/64 octave, from 2^-64 on. The first also has smaller numbers, the last those above 2^64. */
enum { COARSE_SHIFT = 17, COARSE_FIRST = (127 - 64) << 23 };
/* An array of `count` gradients, float32 if is_float32 else bfloat16, and its residual or NULL. is_added: the residual
   already contains the gradients. */
struct strips {
    const void *from;
    float *residual;
    size_t count;
    bool is_float32, is_added;
};

/* Returns the strip of numbers from element `at` on, as float32: residuals if there are any, otherwise gradients. They
   lie in the array, or are copied to `room` (STRIP floats) with zeros behind the end of the array. */
INLINE const float *strips_get_strip(const struct strips *s, size_t at, float *room)
{
    size_t n = s->count - at;
    bool is_float32 = s->residual || s->is_float32, is_whole = n >= STRIP;
    const float *numbers = s->residual ? s->residual + at : (const float *)s->from + at;
    if (is_float32 && is_whole) return numbers;
    if (is_float32) memcpy(room, numbers, n * sizeof *room);
    else if (is_whole)
        for (size_t i = 0; i < STRIP; i++) room[i] = gradient_load_float(s->from, at + i, false);
    else
        for (size_t i = 0; i < n; i++) room[i] = gradient_load_float(s->from, at + i, false);
    if (!is_whole) memset(room + n, 0, (STRIP - n) * sizeof *room);
    return room;
}
/* Adds the gradients of the strip from element `at` on to their residuals. */
INLINE void strips_add_gradients(const struct strips *s, size_t at)
{
    float *restrict residual = s->residual + at;
    if (s->count - at >= STRIP)
        for (size_t i = 0; i < STRIP; i++) residual[i] += gradient_load_float(s->from, at + i, s->is_float32);
    else
        for (size_t i = 0; i < s->count - at; i++) residual[i] += gradient_load_float(s->from, at + i, s->is_float32);
}
/* Sets column[c] to the largest magnitude in column c of the strip x, among `rows` rows from row `top` on. */
INLINE void columns_find_largest(uint32_t *column, const float *x, size_t top, size_t rows)
{
    for (size_t c = 0; c < COLUMNS; c++) column[c] = float_get_magnitude(x[top * COLUMNS + c]);
    for (size_t row = top + 1; row < top + rows; row++)
        for (size_t c = 0; c < COLUMNS; c++) {
            uint32_t magnitude = float_get_magnitude(x[row * COLUMNS + c]);
            column[c] = magnitude > column[c] ? magnitude : column[c];
        }
}
/* Returns the bin of a magnitude in the histogram of the first pass. */
INLINE uint32_t histogram_get_coarse_bin(uint32_t magnitude)
{
    uint32_t bin = (magnitude > COARSE_FIRST ? magnitude - COARSE_FIRST : 0) >> COARSE_SHIFT;
    return bin < BINS ? bin : BINS - 1;
}
/* Returns the highest bin such that it and the bins above it count at least `kept` numbers, or 0. *above gets the count
   in the bins above it. */
static size_t histogram_find_bound_bin(const uint32_t *bin, size_t kept, size_t *above)
{
    size_t at = BINS - 1, seen = 0;
    for (; at > 0 && seen + bin[at] < kept; at--) seen += bin[at];
    *above = seen;
    return at;
}
/* Makes the first pass: adds the gradients to the residual unless they are added, and returns a magnitude that at least
   `kept` numbers reach, and few more. *largest gets the largest magnitude. With far more columns than `kept`, few
   columns have several of the largest numbers. */
INLINE uint32_t strips_find_bound(const struct strips *s, size_t kept, uint32_t *largest)
{
    const size_t rows = kept < s->count / 32 ? ROWS : kept < s->count / 8 ? 4 : 1;
    uint32_t bin[BINS] = { 0 }, column[COLUMNS], most[COLUMNS] = { 0 };
    size_t above;
    float room[STRIP];
    for (size_t at = 0; at < s->count; at += STRIP) {
        if (s->residual && !s->is_added) strips_add_gradients(s, at);
        const float *x = strips_get_strip(s, at, room);
        for (size_t top = 0; top < ROWS; top += rows) {
            columns_find_largest(column, x, top, rows);
            for (size_t c = 0; c < COLUMNS; c++) most[c] = column[c] > most[c] ? column[c] : most[c];
            for (size_t c = 0; c < COLUMNS; c++) column[c] = histogram_get_coarse_bin(column[c]);
            for (size_t c = 0; c < COLUMNS; c++) bin[column[c]]++;
        }
    }
    *largest = 0;
    for (size_t c = 0; c < COLUMNS; c++) *largest = most[c] > *largest ? most[c] : *largest;
    size_t at = histogram_find_bound_bin(bin, kept, &above);
    return at ? COARSE_FIRST + ((uint32_t)at << COARSE_SHIFT) : 0;
}
/* Writes the places in the strip x of the numbers whose magnitude reaches the bound, ordered by column, and returns how
   many. `place` has room for STRIP places. */
INLINE size_t strip_find_large(const float *x, uint32_t bound, uint16_t *place)
{
    uint32_t column[COLUMNS];
    size_t found = 0;
    columns_find_largest(column, x, 0, ROWS);
    for (size_t c = 0; c < COLUMNS; c++)
        for (size_t i = c; column[c] >= bound && i < STRIP; i += COLUMNS) {
            place[found] = (uint16_t)i;
            found += float_get_magnitude(x[i]) >= bound;
        }
    return found;
}
/* Returns number i of the array: its residual if there is one, otherwise its gradient. */
INLINE float strips_get_number(const struct strips *s, size_t i)
{
    return s->residual ? s->residual[i] : gradient_load_float(s->from, i, s->is_float32);
}
/* Which numbers are packed: all with magnitudes of at least `all_from`, and the first least_count of those between
   `least` and all_from. is_finite: all numbers of the array are finite. */
struct largest_choice { uint32_t least, all_from; size_t least_count; bool is_finite; };
/* Takes the next number, of this magnitude, if the choice includes it; one below all_from counts least_count down.
   Returns true if it is packed. */
static bool largest_choice_take(struct largest_choice *choice, uint32_t magnitude)
{
    if (magnitude >= choice->all_from) return true;
    if (magnitude < choice->least || choice->least_count == 0) return false;
    choice->least_count--;
    return true;
}
/* Makes the second pass: lists the places of the numbers that reach the first bound, up to `room` of them, and returns
   how many reach it. *out gets the choice of the `kept` largest numbers. */
INLINE size_t strips_choose_largest(const struct strips *s, size_t kept, uint32_t *list, size_t room,
    struct largest_choice *out)
{
    uint32_t bin[BINS] = { 0 }, largest, bound = strips_find_bound(s, kept, &largest);
    uint16_t place[STRIP];
    size_t above, reach = 0;
    int shift = 0;
    float copy[STRIP];
    while ((largest - bound) >> shift >= BINS) shift++;
    for (size_t at = 0; at < s->count; at += STRIP) {
        const float *x = strips_get_strip(s, at, copy);
        size_t found = strip_find_large(x, bound, place);
        for (size_t i = 0; i < found; i++) {
            /* The copy of the last strip has zeros behind the end. */
            if (at + place[i] >= s->count) continue;
            bin[(float_get_magnitude(x[place[i]]) - bound) >> shift]++;
            if (reach < room) list[reach] = (uint32_t)(at + place[i]);
            reach++;
        }
    }
    uint32_t least = bound + ((uint32_t)histogram_find_bound_bin(bin, kept, &above) << shift);
    *out = (struct largest_choice){ least, least + (1u << shift), kept - above, largest < NOT_FINITE };
    return reach;
}
/* Makes the third pass: lists the places (indices in the array) of the numbers that `choice` takes. They ascend from
   strip to strip. Within a strip they have the order of strip_find_large, column by column. */
INLINE void strips_list_chosen(const struct strips *s, struct largest_choice choice, uint32_t *list)
{
    uint16_t place[STRIP];
    size_t taken = 0;
    float copy[STRIP];
    for (size_t at = 0; at < s->count; at += STRIP) {
        const float *x = strips_get_strip(s, at, copy);
        size_t found = strip_find_large(x, choice.least, place);
        for (size_t i = 0; i < found; i++) {
            bool is_inside = at + place[i] < s->count;
            if (is_inside && largest_choice_take(&choice, float_get_magnitude(x[place[i]])))
                list[taken++] = (uint32_t)(at + place[i]);
        }
    }
}
/* Writes the `kept` numbers at the places to `values`, and sets their residuals to 0. Unless is_finite, also sets the
   residuals of all NaNs and infinities to 0. */
INLINE void strips_pack_places(char *values, const struct strips *s, const uint32_t *places, size_t kept,
    bool is_finite)
{
    for (size_t i = 0; i < kept; i++) {
        float number = strips_get_number(s, places[i]);
        memcpy(values + i * sizeof number, &number, sizeof number);
        if (s->residual) s->residual[places[i]] = 0;
    }
    if (s->residual && !is_finite) numbers_clear_nonfinite(s->residual, s->count);
}
/* Packs the `kept` largest numbers: first their values, then their places. The room of both serves as a list of twice
   as many places. */
INLINE void strips_pack_largest(char *packed, const struct strips *s, size_t kept)
{
    uint32_t *list = (void *)packed, *places = list + kept;
    struct largest_choice choice;
    size_t reach = strips_choose_largest(s, kept, list, 2 * kept, &choice), taken = 0;
    if (reach > 2 * kept) strips_list_chosen(s, choice, list);
    else
        for (size_t i = 0; i < reach; i++)
            if (largest_choice_take(&choice, float_get_magnitude(strips_get_number(s, list[i]))))
                list[taken++] = list[i];
    memcpy(places, list, kept * sizeof *places);
    strips_pack_places(packed, s, places, kept, choice.is_finite);
}
/* Adds the gradients to the residual, and lists the places of the numbers that reach the bound. Returns how many reach
   it; if they are more than `room`, some number above `room`. Sets *is_finite to false if a listed number is a NaN or
   infinity. */
INLINE size_t strips_list_reaching(const struct strips *s, uint32_t bound, uint32_t *list, size_t room, bool *is_finite)
{
    uint16_t place[STRIP];
    size_t reach = 0;
    float copy[STRIP];
    for (size_t at = 0; at < s->count; at += STRIP) {
        if (s->residual) strips_add_gradients(s, at);
        if (reach > room) continue;
        const float *x = strips_get_strip(s, at, copy);
        size_t found = strip_find_large(x, bound, place);
        for (size_t i = 0; i < found; i++) {
            if (reach < room) list[reach] = (uint32_t)(at + place[i]);
            if (float_get_magnitude(x[place[i]]) >= NOT_FINITE) *is_finite = false;
            reach++;
        }
    }
    return reach;
}
/* Packs the numbers that reach the bound, or the largest ones if more than `most` reach it. The packed count precedes
   the values, and the places follow them. The list is made where the values go, so it is first copied behind them. */
INLINE void strips_pack_reaching(char *packed, struct strips *s, size_t most, uint32_t bound)
{
    uint32_t count, *list = (void *)(packed + sizeof count);
    bool is_finite = true;
    size_t reach = strips_list_reaching(s, bound, list, most, &is_finite);
    count = (uint32_t)(reach < most ? reach : most);
    memcpy(packed, &count, sizeof count);
    s->is_added = true;
    if (reach > most) {
        strips_pack_largest(packed + sizeof count, s, most);
        return;
    }
    memcpy(list + reach, list, reach * sizeof *list);
    strips_pack_places(packed + sizeof count, s, list + reach, reach, is_finite);
}
/* Adds to x[count] the packed numbers whose places are from `first` to first + count - 1, one group. `packed` has
   `kept` values, then their places. A strip never crosses the borders of a group. */
INLINE void packed_add_largest(float *x, const char *packed, size_t kept, size_t first, size_t count)
{
    const char *places = packed + kept * sizeof *x;
    size_t low = 0, high = kept;
    uint32_t place;
    /* A binary search finds the first number of this group. */
    while (low < high) {
        memcpy(&place, places + (low + high) / 2 * sizeof place, sizeof place);
        if (place < first) low = (low + high) / 2 + 1;
        else high = (low + high) / 2;
    }
    for (; low < kept; low++) {
        float number;
        memcpy(&place, places + low * sizeof place, sizeof place);
        size_t at = place - first;
        /* A later group has this place, or the sender has sent invalid places. */
        if (at >= count) return;
        memcpy(&number, packed + low * sizeof number, sizeof number);
        x[at] += number;
    }
}
/* Adds to x[count] the numbers of a group that THRESHOLD has packed: their count, at most `most`, precedes the
   values. */
INLINE void packed_add_reaching(float *x, const char *packed, size_t most, size_t first, size_t count)
{
    uint32_t kept;
    memcpy(&kept, packed, sizeof kept);
    packed_add_largest(x, packed + sizeof kept, kept < most ? kept : most, first, count);
}
