/* Messages that other processes may send over UCX. A message carries the number of its connection, which only its two
   processes know. Messages about the connection itself, notices, carry a proof. Sends that UCX completes late, after
   their connection was closed, access no freed memory. */
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/transports/fabric/fabric_transport.h"
#include "backend/transports/ucx/worker.h"
#include "tests/support/unit.h"
#include "tests/unit/transports/ranks_fabric.h"
#include <time.h>

static const unsigned char mine[16] = { 1 }, others[16] = { 2 };
static unsigned char address[FABRIC_ADDRESS_BYTES];
static size_t address_bytes;
static struct key_id key;

static int start(void **state)
{
    key = ranks_key();
    const struct fabric_environment place = { .device = "lo", .simulated = true };
    (void)state;
    return fabric_open(&ucx_fabric, mine, &place, address, &address_bytes) != TUTTI_OK;
}
static int stop(void **state)
{
    (void)state;
    fabric_close(&ucx_fabric);
    return 0;
}
static struct ucx_endpoint *connect_to(const unsigned char process[16])
{
    struct endpoint *e;
    pthread_mutex_lock(&ucx_fabric.lock);
    assert_int_equal(ucx_endpoint_create(&ucx_fabric, process, &key, address, address_bytes, &e), TUTTI_OK);
    pthread_mutex_unlock(&ucx_fabric.lock);
    return (struct ucx_endpoint *)e;
}
/* A message as UCX delivers it. */
struct ucx_message { struct header header; uint64_t connection; };
static void receive_bytes(struct ucx_message message, size_t bytes)
{
    const ucp_am_recv_param_t how = { .recv_attr = 0 };
    pthread_mutex_lock(&ucx_fabric.lock);
    assert_int_equal(ucx_on_message(NULL, &message, bytes, NULL, 0, &how), UCS_OK);
    pthread_mutex_unlock(&ucx_fabric.lock);
}
static void receive_whole(struct ucx_message message) { receive_bytes(message, sizeof message); }
static int early(void)
{
    pthread_mutex_lock(&ucx_fabric.lock);
    int count = ucx_fabric.early.count;
    pthread_mutex_unlock(&ucx_fabric.lock);
    return count;
}

static void test_a_message_needs_the_number_of_its_connection(void **state)
{
    struct ucx_endpoint *e = connect_to(others);
    struct ucx_message message = { { .comm = 5, .from = 1 }, e->number };
    (void)state;
    /* Another process cannot compute the next number from one that it knows. */
    assert_true(e->number != 0 && e->number != connect_to(others)->number - 2);
    receive_whole(message);
    assert_int_equal(early(), 1);
    assert_int_equal(e->base.early_count, 1);
    message.connection += 2;
    receive_whole(message);
    message.connection = 0;
    receive_whole(message);
    receive_bytes(message, sizeof message.header);
    receive_bytes(message, sizeof message - 1);
    receive_bytes(message, 0);
    assert_int_equal(early(), 1);
    assert_false(e->base.is_faulty);
}
static void test_an_invalid_message_breaks_the_connection(void **state)
{
    struct ucx_endpoint *e = connect_to(others);
    (void)state;
    receive_whole((struct ucx_message){ { .comm = 5, .bytes = 7 }, e->number });
    assert_true(e->base.is_faulty && endpoint_is_broken(&e->base));
    /* The fabric's thread disconnects the endpoint. */
    while (e->ep) nanosleep(&(struct timespec){ 0, 100000 }, NULL);
}
/* ---- notices about a connection ---- */
/* Another process: its fabric, and its endpoint to this process. */
struct other { struct fabric fabric; struct ucx_endpoint end; };
static struct other other_new(const unsigned char process[16])
{
    struct other o = { .end.number = 77 };
    memcpy(o.fabric.process, process, sizeof o.fabric.process);
    memcpy(o.fabric.address, address, address_bytes);
    o.fabric.address_bytes = address_bytes;
    assert_int_equal(endpoint_init_identity(&o.fabric, &o.end.base, mine, ucx_fabric.life, &key), TUTTI_OK);
    return o;
}
static void receive_notice(const struct notice *notice, size_t bytes)
{
    struct notice copy = *notice;
    const ucp_am_recv_param_t how = { .recv_attr = 0 };
    pthread_mutex_lock(&ucx_fabric.lock);
    assert_int_equal(ucx_on_message(NULL, &copy.header, sizeof copy.header, copy.data, bytes, &how), UCS_OK);
    ucx_advance_handshakes(&ucx_fabric);
    pthread_mutex_unlock(&ucx_fabric.lock);
}
/* Returns the endpoint to that process, or NULL. */
static struct ucx_endpoint *endpoint_with(const unsigned char process[16])
{
    pthread_mutex_lock(&ucx_fabric.lock);
    struct endpoint *e = endpoint_find(&ucx_fabric, process);
    pthread_mutex_unlock(&ucx_fabric.lock);
    return (struct ucx_endpoint *)e;
}
static int count_endpoints(void)
{
    int count = 0;
    pthread_mutex_lock(&ucx_fabric.lock);
    for (const struct endpoint *e = ucx_fabric.endpoints; e; e = e->next) count++;
    pthread_mutex_unlock(&ucx_fabric.lock);
    return count;
}
/* The proof covers each byte of a HELLO, and its length. */
static void test_a_changed_hello_is_ignored(void **state)
{
    struct other o = other_new(others);
    struct notice right, wrong;
    size_t bytes = notice_make(&o.fabric, &o.end, HELLO, &right);
    (void)state;
    for (size_t at = 0; at < bytes; at += 5) {
        wrong = right;
        wrong.data[at] ^= 1;
        receive_notice(&wrong, bytes);
    }
    wrong = right;
    wrong.header.id++;
    receive_notice(&wrong, bytes);
    for (size_t less = 1; less <= bytes; less += 7) receive_notice(&right, bytes - less);
    assert_int_equal(count_endpoints(), 0);
    receive_notice(&right, bytes);
    assert_int_equal(count_endpoints(), 1);
    assert_int_equal(endpoint_with(others)->peer_number, 77);
}
/* A HELLO that was copied from the network has no effect if it is sent again: one of an earlier connection, one to
   another process, one to its own sender, and one to an earlier fabric of this process. */
static void test_a_replayed_hello_is_ignored(void **state)
{
    struct other first = other_new(others), second = other_new(others), third = other_new((unsigned char[16]){ 3 });
    struct notice old, now, elsewhere;
    size_t bytes = notice_make(&first.fabric, &first.end, HELLO, &old);
    second.end.number = 78;
    (void)state;
    notice_make(&second.fabric, &second.end, HELLO, &now);
    receive_notice(&old, bytes);
    /* The other process has connected again. */
    receive_notice(&now, bytes);
    struct ucx_endpoint *e = endpoint_with(others);
    assert_true(e && e->peer_number == 78 && count_endpoints() == 2);
    for (int i = 0; i < 3; i++) {
        receive_notice(&old, bytes);
        receive_notice(&now, bytes);
    }
    assert_ptr_equal(endpoint_with(others), e);
    assert_int_equal(count_endpoints(), 2);
    assert_int_equal(endpoint_init_identity(&third.fabric, &third.end.base, others, ucx_fabric.life, &key), TUTTI_OK);
    /* A HELLO to another process. */
    notice_make(&third.fabric, &third.end, HELLO, &elsewhere);
    receive_notice(&elsewhere, bytes);
    /* A HELLO of this process. */
    pthread_mutex_lock(&ucx_fabric.lock);
    notice_make(&ucx_fabric, e, HELLO, &elsewhere);
    pthread_mutex_unlock(&ucx_fabric.lock);
    receive_notice(&elsewhere, bytes);
    third = other_new((unsigned char[16]){ 3 });
    /* A HELLO to another life of this process's fabric. */
    third.end.base.life++;
    notice_make(&third.fabric, &third.end, HELLO, &elsewhere);
    receive_notice(&elsewhere, bytes);
    assert_int_equal(count_endpoints(), 2);
}
/* A BYE counts only with the number of this process's endpoint, from the process at the other end, with its proof. */
static void test_a_bye_counts_only_for_its_connection(void **state)
{
    struct ucx_endpoint *e = connect_to(others);
    struct other o = other_new(others), stranger = other_new((unsigned char[16]){ 3 });
    struct notice bye;
    (void)state;
    size_t bytes = notice_make(&o.fabric, &o.end, BYE, &bye);
    /* It names no endpoint. */
    receive_notice(&bye, bytes);
    o.end.peer_number = e->number + 2;
    notice_make(&o.fabric, &o.end, BYE, &bye);
    receive_notice(&bye, bytes);
    stranger.end.peer_number = e->number;
    notice_make(&stranger.fabric, &stranger.end, BYE, &bye);
    receive_notice(&bye, bytes);
    o.end.peer_number = e->number;
    notice_make(&o.fabric, &o.end, BYE, &bye);
    bye.data[bytes - 1] ^= 1;
    receive_notice(&bye, bytes);
    assert_false(e->base.has_left);
    bye.data[bytes - 1] ^= 1;
    receive_notice(&bye, bytes);
    assert_true(e->base.has_left);
}
/* UCX may deliver messages of a connection that this process has closed, for example while it closes another one. */
static void test_messages_of_a_closed_connection_are_ignored(void **state)
{
    struct ucx_endpoint *e = connect_to(others);
    struct other o = other_new(others);
    struct notice notice;
    (void)state;
    pthread_mutex_lock(&ucx_fabric.lock);
    ucx_endpoint_disconnect(&ucx_fabric, &e->base);
    pthread_mutex_unlock(&ucx_fabric.lock);
    o.end.peer_number = e->number;
    for (enum kind_of_ucx kind = OPENED; kind <= BYE_HEARD; kind++)
        receive_notice(&notice, notice_make(&o.fabric, &o.end, kind, &notice));
    receive_whole((struct ucx_message){ { .comm = 5, .from = 1 }, e->number });
    assert_false(e->base.has_left || e->base.is_open || e->has_bye_answer);
    assert_int_equal(early(), 0);
}

/* ---- late completions ---- */
enum { MANY = 200, BYTES = 60000 };
static struct ucx_calls real;
/* The endpoints that close_later has not closed, and the number of sends that the worker's end has completed. */
static ucp_ep_h left[4];
static int left_count, ended_late;
static int count_orphans(void)
{
    int count = 0;
    for (const struct fabric_op *f = ucx_fabric.orphans; f; f = f->next) count++;
    return count;
}
static unsigned no_progress(ucp_worker_h ucp)
{
    (void)ucp;
    return 0;
}
static ucs_status_ptr_t close_later(ucp_ep_h ep, const ucp_request_param_t *parameters)
{
    (void)parameters;
    left[left_count++] = ep;
    return NULL;
}
/* Closes the endpoints, which completes the sends under way, and destroys the worker. */
static void destroy_with_all(ucp_worker_h ucp)
{
    const ucp_request_param_t by_force = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE };
    int before = count_orphans();
    for (int i = 0; i < left_count; i++) {
        ucs_status_ptr_t request = real.ucp_ep_close_nbx(left[i], &by_force);
        while (UCS_PTR_IS_PTR(request) && real.ucp_request_check_status(request) == UCS_INPROGRESS)
            real.ucp_worker_progress(ucp);
        if (UCS_PTR_IS_PTR(request)) real.ucp_request_free(request);
    }
    real.ucp_worker_destroy(ucp);
    ended_late = before - count_orphans();
}
static void test_sends_may_complete_after_their_endpoints_have_closed(void **state)
{
    struct ucx_endpoint *e = connect_to(mine);
    (void)state;
    for (bool open = false; !open;) {
        pthread_mutex_lock(&ucx_fabric.lock);
        open = e->base.is_open;
        pthread_mutex_unlock(&ucx_fabric.lock);
    }
    pthread_mutex_lock(&ucx_fabric.lock);
    real = ucx;
    ucx.ucp_worker_progress = no_progress;
    ucx.ucp_ep_close_nbx = close_later;
    ucx.ucp_worker_destroy = destroy_with_all;
    for (int i = 0; i < MANY; i++) {
        struct fabric_op *f = fabric_op_new(&ucx_fabric, BYTES);
        memset(f->buffer, 0, BYTES);
        f->header = (struct header){ .comm = 5, .bytes = BYTES };
        f->endpoint = &e->base;
        f->bytes = BYTES;
        fabric_op_add(f, &ucx_fabric.orphans);
        if (ucx_send(&ucx_fabric, f, NULL, false)) continue;
        fabric_op_remove(f);
        fabric_op_free(&ucx_fabric, f);
    }
    pthread_mutex_unlock(&ucx_fabric.lock);
    fabric_close(&ucx_fabric);
    assert_true(left_count > 0 && ended_late > 0);
    ucx = real;
}
unit_function test_ucx_payloads;
int test_ucx_payloads(void)
{
    if (!fabric_is_there("UCX", ucx_describe)) return SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_message_needs_the_number_of_its_connection, start, stop),
        cmocka_unit_test_setup_teardown(test_an_invalid_message_breaks_the_connection, start, stop),
        cmocka_unit_test_setup_teardown(test_a_changed_hello_is_ignored, start, stop),
        cmocka_unit_test_setup_teardown(test_a_replayed_hello_is_ignored, start, stop),
        cmocka_unit_test_setup_teardown(test_a_bye_counts_only_for_its_connection, start, stop),
        cmocka_unit_test_setup_teardown(test_messages_of_a_closed_connection_are_ignored, start, stop),
        cmocka_unit_test_setup(test_sends_may_complete_after_their_endpoints_have_closed, start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
