/* Gather and scatter. The cursor stays within the stream, and the padding of a piece has no memory. */
#include "backend/transports/pieces.h"
#include "backend/base/memory.h"
#include <assert.h>
#include <string.h>

/* The shortest run, in bytes, that the special copy function is used for. */
enum { LONG_RUN_BYTES = 1024 };

bool pieces_start(struct transfer *transfer)
{
    uint64_t sum = 0;
    for (int i = 0; i < transfer->piece_count; i++) {
        assert(transfer->pieces[i].length <= transfer->pieces[i].wire);
        if (__builtin_add_overflow(sum, transfer->pieces[i].wire, &sum)) return false;
    }
    transfer->wire = sum;
    transfer->moved = 0;
    transfer->piece = 0;
    transfer->offset = 0;
    return true;
}
/* Bytes of one piece that follow each other in the stream: `wire` in all, of which the first `real` are at `at`, and
   the rest is padding. at NULL: all are padding. */
struct byte_run {
    unsigned char *at;
    size_t real, wire;
};

/* Returns the longest run within the next `limit` bytes that lies in one piece, and moves the cursor past it. */
static struct byte_run pieces_take_run(struct transfer *transfer, size_t limit)
{
    assert(transfer->piece < transfer->piece_count);
    const struct piece *p = &transfer->pieces[transfer->piece];
    size_t rest = p->wire - transfer->offset, wire = rest < limit ? rest : limit;
    size_t left = p->length > transfer->offset ? p->length - transfer->offset : 0;
    struct byte_run run = { left ? p->at + transfer->offset : NULL, left < wire ? left : wire, wire };
    transfer->offset += wire;
    transfer->moved += wire;
    if (transfer->offset == p->wire) {
        transfer->piece++;
        transfer->offset = 0;
    }
    return run;
}
void piece_copy(copy_function *copy, void *to, const void *from, size_t bytes)
{
    if (copy && bytes >= LONG_RUN_BYTES) copy(to, from, bytes);
    else if (bytes) memcpy(to, from, bytes);
}
void pieces_gather_with(copy_function *copy, struct transfer *transfer, unsigned char *to, size_t bytes)
{
    while (bytes) {
        struct byte_run run = pieces_take_run(transfer, bytes);
        piece_copy(copy, to, run.at, run.real);
        to += run.wire;
        bytes -= run.wire;
    }
}
void pieces_scatter_with(copy_function *copy, struct transfer *transfer, const unsigned char *from, size_t bytes)
{
    while (bytes) {
        struct byte_run run = pieces_take_run(transfer, bytes);
        piece_copy(copy, run.at, from, run.real);
        from += run.wire;
        bytes -= run.wire;
    }
}
void pieces_gather(struct transfer *transfer, unsigned char *to, size_t bytes)
{
    pieces_gather_with(NULL, transfer, to, bytes);
}
void pieces_scatter(struct transfer *transfer, const unsigned char *from, size_t bytes)
{
    pieces_scatter_with(NULL, transfer, from, bytes);
}
