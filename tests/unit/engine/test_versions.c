/* Programs and libraries of different versions: the size at the beginning of each public struct, the offsets of its
   members, and the check of unique ids. */
#include "tests/support/unit.h"
#include "tests/support/world.h"

#define SAYS(text) assert_non_null(strstr(tutti_get_last_error(), text))

/* Compiled programs rely on the offsets of members. Later versions add members at the end. */
static void test_members_stay_where_they_are(void **state)
{
    (void)state;
    assert_int_equal(offsetof(tutti_config, struct_size), 0);
    assert_int_equal(offsetof(tutti_config, rank), 8);
    assert_int_equal(offsetof(tutti_config, size), 12);
    assert_int_equal(offsetof(tutti_config, store), 16);
    assert_int_equal(offsetof(tutti_config, name), 40);
    assert_int_equal(offsetof(tutti_config, algorithm), 48);
    assert_int_equal(offsetof(tutti_config, timeout_ms), 56);
    assert_int_equal(offsetof(tutti_config, job_rank), 64);
    assert_int_equal(offsetof(tutti_config, job_size), 68);
    assert_int_equal(offsetof(tutti_config, store_host), 72);
    assert_int_equal(offsetof(tutti_config, store_remove), 80);
    assert_int_equal(offsetof(tutti_config, members), 88);
    assert_int_equal(offsetof(tutti_request, struct_size), 0);
    assert_int_equal(offsetof(tutti_request, algorithm), 8);
    assert_int_equal(offsetof(tutti_request, timeout_ms), 16);
    assert_int_equal(offsetof(tutti_request, factor), 24);
    assert_int_equal(offsetof(tutti_request, done), 32);
    assert_int_equal(offsetof(tutti_request, context), 40);
    assert_int_equal(offsetof(tutti_request, blocking), 48);
    assert_int_equal(offsetof(tutti_request, on_demand), 49);
    assert_int_equal(offsetof(tutti_request, refused), 50);
    assert_int_equal(offsetof(tutti_request, source), 52);
    assert_int_equal(offsetof(tutti_request, sequence), 56);
    assert_int_equal(offsetof(tutti_request, reserved), 64);
    assert_int_equal(TUTTI_REQUEST_ROOM_BYTES, 1024);
    /* The first version of the struct ended before `queue`, the second before `label`, the third before `on_stream`. */
    assert_int_equal(offsetof(tutti_request, queue), 1088);
    assert_int_equal(offsetof(tutti_request, label), 1096);
    assert_int_equal(offsetof(tutti_request, on_stream), 1104);
    assert_int_equal(offsetof(tutti_request, stream), 1112);
    assert_int_equal(offsetof(tutti_prediction, struct_size), 0);
    assert_int_equal(offsetof(tutti_prediction, algorithm), 8);
    assert_int_equal(offsetof(tutti_prediction, ns), 16);
    assert_int_equal(offsetof(tutti_prediction, tile_bytes), 24);
    assert_int_equal(offsetof(tutti_prediction, slots), 32);
    assert_int_equal(offsetof(tutti_prediction, candidate), 36);
    assert_int_equal(sizeof(tutti_prediction), 40);
}
static void check_refused(const tutti_config *config, const char *text)
{
    tutti_comm *comm = NULL;
    assert_int_equal(tutti_comm_init(&comm, config), TUTTI_INVALID_ARGUMENT);
    SAYS(text);
    assert_null(comm);
}
static void test_a_config_of_unknown_size_is_refused(void **state)
{
    (void)state;
    tutti_config config = { .size = 1 };
    check_refused(&config, "tutti_config.struct_size is 0: initialize it with TUTTI_CONFIG_INIT");
    /* A struct of this size does not have the number of ranks. */
    config.struct_size = 15;
    check_refused(&config, "tutti_config.struct_size is 15, but every version of it has at least 16 bytes");
    config.struct_size = sizeof config + 8;
    char text[64];
    snprintf(text, sizeof text, "is %zu, but this library, tutti " TUTTI_VERSION ", knows %zu bytes", sizeof config + 8,
        sizeof config);
    check_refused(&config, text);
    SAYS("compiled for a later version");
}
/* The library reads only the bytes that struct_size gives. The address sanitizer checks this too. */
static void test_a_config_of_an_older_program_is_read_as_far_as_it_goes(void **state)
{
    (void)state;
    tutti_comm *comm;
    float x = 3;
    tutti_config *old = malloc(offsetof(tutti_config, name));
    const tutti_config all = { .struct_size = offsetof(tutti_config, name), .size = 1 };
    memcpy(old, &all, offsetof(tutti_config, name));
    assert_int_equal(tutti_comm_init(&comm, old), TUTTI_OK);
    free(old);
    assert_int_equal(tutti_all_reduce(&x, &x, 1, TUTTI_FLOAT32, TUTTI_SUM, comm, NULL), TUTTI_OK);
    assert_int_equal(tutti_comm_destroy(comm), TUTTI_OK);
}
/* Each rank refuses other requests, and the all-reduce after them still matches: a refused request is sent to no other
   rank. */
static void refuse_requests(struct rank *me)
{
    const struct {
        size_t size;
        const char *text;
    } cases[] = {
        { 0, "tutti_request.struct_size is 0: initialize it with TUTTI_REQUEST_INIT" },
        { sizeof(tutti_request) + 8, "program was compiled for a later version" },
        { offsetof(tutti_request, reserved), "struct_size is 64, but every version of it has at least 1088 bytes" },
        { sizeof(tutti_request) - 1, "tutti_request.struct_size is" },
    };
    float x = 1;
    for (int i = 0; i < 4; i++) {
        tutti_request request = { .struct_size = cases[i].size, .blocking = i % 2 };
        if (i % me->size != me->rank) continue;
        REQUIRE(tutti_barrier(me->comm, &request) == TUTTI_INVALID_ARGUMENT);
        REQUIRE(strstr(tutti_get_last_error(), cases[i].text));
        REQUIRE(tutti_send(&x, 1, TUTTI_FLOAT32, 1 - me->rank, 0, me->comm, &request) == TUTTI_INVALID_ARGUMENT);
        REQUIRE(tutti_wait(&request, 0) == TUTTI_INVALID_ARGUMENT && strstr(tutti_get_last_error(), "never used"));
    }
    REQUIRE(tutti_all_reduce(&x, &x, 1, TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL) == TUTTI_OK && x == 2);
}
/* The library does not read behind an older program's request. Here the memory behind it looks like a queue. */
static void use_an_older_request(struct rank *me)
{
    float x = 1;
    tutti_request request = { .struct_size = offsetof(tutti_request, queue) };
    request.queue = (tutti_queue *)(uintptr_t)16;
    REQUIRE(tutti_all_reduce(&x, &x, 1, TUTTI_FLOAT32, TUTTI_SUM, me->comm, &request) == TUTTI_OK);
    REQUIRE(tutti_wait(&request, 0) == TUTTI_OK && x == 2);
    tutti_request second = { .struct_size = offsetof(tutti_request, label), .label = 5 + (uint64_t)me->rank };
    REQUIRE(tutti_all_reduce(&x, &x, 1, TUTTI_FLOAT32, TUTTI_SUM, me->comm, &second) == TUTTI_OK);
    REQUIRE(tutti_wait(&second, 0) == TUTTI_OK && x == 4);
    tutti_request third = { .struct_size = offsetof(tutti_request, on_stream), .on_stream = true };
    REQUIRE(tutti_all_reduce(&x, &x, 1, TUTTI_FLOAT32, TUTTI_SUM, me->comm, &third) == TUTTI_OK);
    REQUIRE(tutti_wait(&third, 0) == TUTTI_OK && x == 8);
}
static void test_a_request_of_an_older_program_is_read_as_far_as_it_goes(void **state)
{
    (void)state;
    world_threads(2, NULL, use_an_older_request, NULL);
}
static void test_a_request_of_unknown_size_is_refused(void **state)
{
    (void)state;
    world_threads(2, NULL, refuse_requests, NULL);
}
/* ---- ids ---- */
static void check_id_refused(const tutti_unique_id *id, const char *text)
{
    tutti_comm *comm = NULL;
    /* No rank waits for the other. */
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(tutti_comm_init_rank(&comm, 2, *id, rank), TUTTI_INVALID_ARGUMENT);
        SAYS(text);
        assert_null(comm);
    }
}
static void test_an_id_has_128_bytes_and_is_checked(void **state)
{
    (void)state;
    tutti_unique_id id = { { 0 } }, other;
    assert_int_equal(sizeof id, 128);
    check_id_refused(&id, "the unique id is empty: one rank makes it with tutti_get_unique_id");
    memset(&id, 0xff, sizeof id);
    check_id_refused(&id, "damaged when it was passed on (all 128 bytes must arrive), or a later version made it");
    assert_int_equal(tutti_get_unique_id(&id), TUTTI_OK);
    assert_int_equal(tutti_get_unique_id(&other), TUTTI_OK);
    assert_memory_not_equal(&id, &other, sizeof id);
    id.bytes[127] = 1;
    check_id_refused(&id, "not one that tutti " TUTTI_VERSION " makes");
    assert_int_equal(tutti_get_unique_id(NULL), TUTTI_INVALID_ARGUMENT);
    SAYS("the pointer to the id is NULL");
}
unit_function test_versions;
int test_versions(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_members_stay_where_they_are),
        cmocka_unit_test(test_a_config_of_unknown_size_is_refused),
        cmocka_unit_test(test_a_config_of_an_older_program_is_read_as_far_as_it_goes),
        cmocka_unit_test(test_a_request_of_unknown_size_is_refused),
        cmocka_unit_test(test_a_request_of_an_older_program_is_read_as_far_as_it_goes),
        cmocka_unit_test(test_an_id_has_128_bytes_and_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
