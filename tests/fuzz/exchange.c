/* Packed gradients of other hosts: the number of bytes that they announce, and the bytes. Numbers that
   are unpacked have memory of their own, and so has what came, so that a byte beyond either is found. */
#include "tests/fuzz/input.h"
#include "zero/compressed_exchange.h"
#include <stdlib.h>

enum { SIDES = 3, MOST_COUNT = 1500 };
static const tutti_dtype dtypes[] = { TUTTI_FLOAT32, TUTTI_BFLOAT16 };

static struct compressed_exchange crossing_of(struct input *in)
{
    struct compressed_exchange x = { .ranks = SIDES, .sides = SIDES, .side = input_byte(in) % SIDES };
    x.how.form = 1 + input_byte(in) % (TUTTI_COMPRESS_FORMS - 1);
    x.how.kept = 1 + input_byte(in) % 256;
    x.how.threshold = 1;
    x.how.seed = input_byte(in);
    return x;
}
/* As packed_send_lengths and packed_send_slices leave it. Most lengths are near to the room that there is. */
static void parcel_receive(struct packed_slices *p, struct input *in, size_t room)
{
    for (int side = 0; side < SIDES; side++) {
        uint8_t how = input_byte(in);
        p->in_bytes[side] = how < 200 ? room - (how % 8 < room ? how % 8 : 0) : (size_t)input_number(in);
    }
    input_take(in, p->in, SIDES * room);
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, size };
    struct compressed_exchange x = crossing_of(&in);
    struct packed_slices p = { .out = NULL };
    size_t count = 1 + ((size_t)input_byte(&in) << 8 | input_byte(&in)) % MOST_COUNT;
    struct numbers to = { .count = count, .dtype = dtypes[input_byte(&in) % 2], .sequence = input_byte(&in) };
    bool back = input_byte(&in) % 2;
    FUZZ_CHECK(packed_resize(&p, &x, count) == TUTTI_OK);
    size_t room = back ? p.average_bytes : p.slice_bytes;
    char *whole = p.in, *exact = malloc(SIDES * room);
    p.in = exact;
    for (int side = 0; side < SIDES; side++) p.sources[side] = exact + room * (size_t)side;
    to.at = malloc(count * (to.dtype == TUTTI_FLOAT32 ? 4 : 2));
    parcel_receive(&p, &in, room);
    for (int side = 0; back && side < SIDES; side++) packed_read_average(&p, &x, side, to);
    if (!back) packed_average_slices(&p, &x, to);
    free(to.at);
    free(exact);
    p.in = whole;
    packed_finish(&p);
    return 0;
}
