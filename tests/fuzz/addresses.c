/* Fuzzes the choice of a network interface by TUTTI_SOCKET_IFNAME, and the text of addresses. */
#include "backend/join/interface.h"
#include "tests/fuzz/input.h"

enum { INTERFACES = 4, MOST_NAMES = 256 };

static struct interface interface_of_input(struct input *in)
{
    struct interface i = { .up = input_byte(in) % 4 };
    input_take(in, i.name, sizeof i.name - 1);
    /* AF_INET, AF_INET6, none, and an unknown one. */
    static const uint16_t families[] = { 2, 10, 0, 77 };
    i.contact.family = families[input_byte(in) % 4];
    i.contact.port = (uint16_t)input_byte(in);
    i.contact.scope = input_byte(in);
    input_take(in, i.contact.address, sizeof i.contact.address);
    return i;
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, size };
    struct interface table[INTERFACES];
    char names[MOST_NAMES], text[SOCK_ADDRESS_TEXT_BYTES];
    int count = input_byte(&in) % (INTERFACES + 1);
    for (int i = 0; i < count; i++) {
        table[i] = interface_of_input(&in);
        FUZZ_CHECK(strlen(sock_address_print(&table[i].contact, text)) < sizeof text);
        sock_address_is_loopback(&table[i].contact);
    }
    input_text(&in, names, sizeof names);
    const struct interface *found = interface_choose(table, count, names);
    FUZZ_CHECK(!found || (found >= table && found < table + count && found->up));
    return 0;
}
