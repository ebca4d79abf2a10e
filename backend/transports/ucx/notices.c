/* Builds and checks notices, the messages of two processes about their connection. The header travels as UCX's header.
 * The data is a fabric_handshake, in HELLO also an address, and a proof that covers all of them. */
#include "backend/transports/ucx/worker.h"
#include <stddef.h>
#include <string.h>

/* Returns how many bytes of a notice its proof covers: header, handshake and address, which lie in one piece. `bytes`
   is the length of the data without the proof. */
static size_t notice_proved_bytes(size_t bytes) { return offsetof(struct notice, data) + bytes; }

size_t notice_make(const struct fabric *fabric, const struct ucx_endpoint *endpoint, enum kind_of_ucx kind,
    struct notice *out)
{
    size_t address_bytes = kind == HELLO ? fabric->address_bytes : 0, bytes = sizeof out->handshake + address_bytes;
    out->header = (struct header){ .kind = kind, .id = endpoint->number, .bytes = endpoint->peer_number };
    fabric_handshake_init(fabric, &endpoint->base, &out->handshake);
    memcpy(out->address, fabric->address, address_bytes);
    proof_make(&endpoint->base.pair_key, out, notice_proved_bytes(bytes), out->data + bytes);
    return bytes + PROOF_BYTES;
}
bool notice_read(const struct fabric *fabric, const struct header *header, const void *data, size_t *bytes,
    struct notice *out)
{
    if (*bytes > sizeof out->data || *bytes < sizeof out->handshake + PROOF_BYTES) return false;
    out->header = *header;
    memcpy(out->data, data, *bytes);
    *bytes -= PROOF_BYTES;
    return fabric_handshake_is_proved(fabric, &out->handshake, out, notice_proved_bytes(*bytes), out->data + *bytes);
}
