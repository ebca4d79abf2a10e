/* Fuzzes packed slices of other hosts: the announced numbers of bytes, and the bytes. The received bytes and the
   unpacked numbers have memory of exactly their size, so that the sanitizer finds an access beyond it. */
#include "tests/fuzz/input.h"
#include "zero/compressed_exchange.h"
#include <stdlib.h>

enum { SIDES = 3, MOST_COUNT = 1500 };
static const tutti_dtype dtypes[] = { TUTTI_FLOAT32, TUTTI_BFLOAT16 };

static struct compressed_exchange exchange_of_input(struct input *in)
{
    struct compressed_exchange x = { .ranks = SIDES, .sides = SIDES, .side = input_byte(in) % SIDES };
    x.how.form = 1 + input_byte(in) % (TUTTI_COMPRESS_FORMS - 1);
    x.how.kept = 1 + input_byte(in) % 256;
    x.how.threshold = 1;
    x.how.seed = input_byte(in);
    return x;
}
/* Sets what packed_send_lengths and packed_send_slices receive. Most lengths are near to the size of the buffer. */
static void slices_receive(struct packed_slices *p, struct input *in, size_t room)
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
    struct compressed_exchange x = exchange_of_input(&in);
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
    slices_receive(&p, &in, room);
    for (int side = 0; back && side < SIDES; side++) packed_read_average(&p, &x, side, to);
    if (!back) packed_average_slices(&p, &x, to);
    free(to.at);
    free(exact);
    p.in = whole;
    packed_finish(&p);
    return 0;
}
