/* Tests of the fake without failures: messages of each kind, their order, inline bytes, unsignalled requests, room in
   queues, devices, and counters. */
#include "tests/support/unit.h"
#include "tests/verbs/ends.h"
#include <dlfcn.h>
#include <errno.h>
#include <sys/mman.h>

static void test_every_symbol_has_its_version(void **state)
{
    (void)state;
    static const char *const names[] = { "ibv_get_device_list", "ibv_free_device_list", "ibv_get_device_name",
        "ibv_open_device", "ibv_close_device", "ibv_query_device", "ibv_query_port", "ibv_query_gid", "ibv_alloc_pd",
        "ibv_dealloc_pd", "ibv_reg_mr", "ibv_dereg_mr", "ibv_create_srq", "ibv_destroy_srq", "ibv_create_cq",
        "ibv_resize_cq", "ibv_destroy_cq", "ibv_get_cq_event", "ibv_ack_cq_events", "ibv_create_qp", "ibv_modify_qp",
        "ibv_destroy_qp", "ibv_create_ah", "ibv_destroy_ah", "ibv_get_async_event", "ibv_ack_async_event",
        "ibv_wc_status_str" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_non_null(dlvsym(RTLD_DEFAULT, names[i], "IBVERBS_1.1"));
    assert_non_null(dlvsym(RTLD_DEFAULT, "ibv_create_comp_channel", "IBVERBS_1.0"));
    assert_non_null(dlvsym(RTLD_DEFAULT, "ibv_destroy_comp_channel", "IBVERBS_1.0"));
    assert_non_null(dlvsym(RTLD_DEFAULT, "_ibv_query_gid_table", "IBVERBS_1.11"));
    assert_non_null(dlvsym(RTLD_DEFAULT, "ibv_reg_dmabuf_mr", "IBVERBS_1.12"));
    assert_null(dlvsym(RTLD_DEFAULT, "machine_lock", "IBVERBS_1.1"));
    assert_null(dlsym(RTLD_DEFAULT, "machine_lock"));
}

static void test_devices_and_addresses(void **state)
{
    (void)state;
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    assert_int_equal(count, 2);
    assert_string_equal(ibv_get_device_name(list[1]), "fake_1");
    struct ibv_context *c = ibv_open_device(list[1]);
    ibv_free_device_list(list);
    struct ibv_device_attr device;
    struct ibv_port_attr port;
    assert_int_equal(ibv_query_device(c, &device), 0);
    assert_int_equal(device.phys_port_cnt, 1);
    assert_int_equal(ibv_query_port(c, 1, &port), 0);
    assert_int_equal(port.state, IBV_PORT_ACTIVE);
    assert_int_equal(port.link_layer, IBV_LINK_LAYER_ETHERNET);
    assert_int_equal(ibv_query_port(c, 2, &port), EINVAL);
    struct ibv_gid_entry entries[FAKE_GIDS];
    assert_int_equal(ibv_query_gid_table(c, entries, FAKE_GIDS, 0), 6);
    assert_int_equal(entries[3].gid_type, IBV_GID_TYPE_ROCE_V2);
    static const unsigned char mapped[16] = { [10] = 0xff, 0xff, 10, 0, 0, 2 };
    assert_memory_equal(entries[3].gid.raw, mapped, 16);
    union ibv_gid gid;
    assert_int_equal(ibv_query_gid(c, 1, 3, &gid), 0);
    assert_memory_equal(gid.raw, mapped, 16);
    assert_int_equal(ibv_query_gid(c, 1, FAKE_GIDS, &gid), -1);
    fake_set_gids(1, &entries[3], 1);
    assert_int_equal(ibv_query_gid_table(c, entries, FAKE_GIDS, 0), 1);
    assert_int_equal(entries[0].gid_index, 0);
    ibv_close_device(c);
    assert_int_equal(fake_left(), 0);
}

/* ---- messages ---- */
static void test_a_write_reaches_the_peer_without_its_help(void **state)
{
    (void)state;
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    end_fill(&e[0], 100, 5000, 1);
    struct ibv_sge sge = sge_of(&e[0], 100, 5000);
    struct ibv_send_wr wr = request(11, IBV_WR_RDMA_WRITE, &sge, &e[1], 300);
    assert_int_equal(post(e[0].qp, &wr), 0);
    struct ibv_wc wc = completion(e[0].cq);
    assert_int_equal(wc.wr_id, 11);
    assert_int_equal(wc.status, IBV_WC_SUCCESS);
    assert_int_equal(wc.opcode, IBV_WC_RDMA_WRITE);
    assert_int_equal(wc.qp_num, e[0].qp->qp_num);
    assert_memory_equal(e[1].memory + 300, e[0].memory + 100, 5000);
    assert_int_equal(e[1].memory[299] | e[1].memory[5300], 0);
    no_completion(e[1].cq);
    assert_int_equal(fake_count(FAKE_BYTES_WRITTEN), 5000);
    ends_finish(e);
}
static void test_a_write_with_immediate_uses_up_a_receive(void **state)
{
    (void)state;
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    end_fill(&e[0], 0, 64, 2);
    struct ibv_sge sge = sge_of(&e[0], 0, 64);
    struct ibv_send_wr wr = request(12, IBV_WR_RDMA_WRITE_WITH_IMM, &sge, &e[1], 64);
    assert_int_equal(post_receive(e[1].qp, 77, NULL), 0);
    assert_int_equal(post(e[0].qp, &wr), 0);
    struct ibv_wc wc = completion(e[1].cq);
    assert_int_equal(wc.wr_id, 77);
    assert_int_equal(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    assert_int_equal(wc.wc_flags, IBV_WC_WITH_IMM);
    assert_int_equal(wc.imm_data, 12);
    assert_int_equal(wc.byte_len, 64);
    assert_int_equal(wc.qp_num, e[1].qp->qp_num);
    assert_memory_equal(e[1].memory + 64, e[0].memory, 64);
    assert_int_equal(completion(e[0].cq).wr_id, 12);
    ends_finish(e);
}
static void test_a_send_is_scattered_into_a_receive(void **state)
{
    (void)state;
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    end_fill(&e[0], 0, 300, 3);
    struct ibv_sge from[2] = { sge_of(&e[0], 0, 100), sge_of(&e[0], 100, 200) };
    struct ibv_sge into[3] = { sge_of(&e[1], 0, 50), sge_of(&e[1], 1000, 130), sge_of(&e[1], 3000, 500) };
    struct ibv_recv_wr receive = { .wr_id = 5, .sg_list = into, .num_sge = 3 }, *bad;
    assert_int_equal(ibv_post_recv(e[1].qp, &receive, &bad), 0);
    struct ibv_send_wr wr = request(13, IBV_WR_SEND_WITH_IMM, from, &e[1], 0);
    wr.num_sge = 2;
    assert_int_equal(post(e[0].qp, &wr), 0);
    struct ibv_wc wc = completion(e[1].cq);
    assert_int_equal(wc.opcode, IBV_WC_RECV);
    assert_int_equal(wc.byte_len, 300);
    assert_int_equal(wc.imm_data, 13);
    assert_memory_equal(e[1].memory, e[0].memory, 50);
    assert_memory_equal(e[1].memory + 1000, e[0].memory + 50, 130);
    assert_memory_equal(e[1].memory + 3000, e[0].memory + 180, 120);
    assert_int_equal(e[1].memory[3120], 0);
    assert_int_equal(completion(e[0].cq).opcode, IBV_WC_SEND);
    ends_finish(e);
}
static void test_a_read_fetches(void **state)
{
    (void)state;
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    /* The wire moves so many bytes in several portions. */
    end_fill(&e[1], 0, END_BYTES, 4);
    struct ibv_sge sge = sge_of(&e[0], 0, END_BYTES);
    struct ibv_send_wr wr = request(14, IBV_WR_RDMA_READ, &sge, &e[1], 0);
    assert_int_equal(post(e[0].qp, &wr), 0);
    struct ibv_wc wc = completion(e[0].cq);
    assert_int_equal(wc.opcode, IBV_WC_RDMA_READ);
    assert_int_equal(wc.byte_len, END_BYTES);
    assert_memory_equal(e[0].memory, e[1].memory, END_BYTES);
    assert_int_equal(fake_count(FAKE_BYTES_READ), END_BYTES);
    ends_finish(e);
}
static void test_a_pair_may_be_connected_with_itself(void **state)
{
    (void)state;
    struct end e;
    end_init(&e, 0, IBV_QPT_RC, END_WORKS);
    struct ibv_qp_attr a = path_to(0, e.qp->qp_num);
    pair_init(e.qp, END_ACCESS);
    assert_int_equal(pair_receive(e.qp, a), 0);
    assert_int_equal(pair_send(e.qp, a), 0);
    assert_int_equal(post_receive(e.qp, 1, NULL), 0);
    struct ibv_send_wr wr = request(2, IBV_WR_RDMA_WRITE_WITH_IMM, NULL, &e, 0);
    assert_int_equal(post(e.qp, &wr), 0);
    assert_int_equal(completion(e.cq).wr_id + completion(e.cq).wr_id, 3);
    end_finish(&e);
}

static void test_order_within_a_pair(void **state)
{
    (void)state;
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    fake_set_faults(&(struct fake_faults){
        .seed = 1, .delay = 300000, .delay_most_us = 50, .late = 500000, .late_most_us = 200 });
    for (uint64_t id = 0; id < END_WORKS; id++) assert_int_equal(post_receive(e[1].qp, id, NULL), 0);
    for (uint64_t id = 0; id < END_WORKS; id++) {
        struct ibv_send_wr wr = request(id, IBV_WR_RDMA_WRITE_WITH_IMM, NULL, &e[1], 0);
        assert_int_equal(post(e[0].qp, &wr), 0);
    }
    for (uint64_t id = 0; id < END_WORKS; id++) {
        struct ibv_wc there = completion(e[1].cq), here = completion(e[0].cq);
        assert_int_equal(here.wr_id, id);
        assert_int_equal(there.wr_id, id);
        assert_int_equal(there.imm_data, id);
    }
    ends_finish(e);
}
/* Carries out 20 times a request of one queue pair and then one of another, while completions are late with this
   probability. Returns how often the completions came in the other order. */
static int count_reversed_completions(uint32_t late)
{
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    struct ibv_qp *pairs[2][2] = { { e[0].qp, end_pair(&e[0], IBV_QPT_RC, 8) },
        { e[1].qp, end_pair(&e[1], IBV_QPT_RC, 8) } };
    pairs_connect(pairs[0][1], 0, pairs[1][1], 1);
    fake_set_faults(&(struct fake_faults){ .seed = 2, .late = late, .late_most_us = 20000 });
    int reversed = 0;
    for (int turn = 0; turn < 20; turn++) {
        for (uint64_t id = 0; id < 2; id++) {
            struct ibv_sge sge = sge_of(&e[0], 0, 8);
            struct ibv_send_wr wr = request(id, IBV_WR_RDMA_WRITE, &sge, &e[1], 0);
            uint64_t before = fake_count(FAKE_BYTES_WRITTEN);
            assert_int_equal(post(pairs[0][id], &wr), 0);
            while (fake_count(FAKE_BYTES_WRITTEN) == before) usleep(10);
        }
        reversed += completion(e[0].cq).wr_id == 1;
        completion(e[0].cq);
    }
    for (int i = 0; i < 2; i++) ibv_destroy_qp(pairs[i][1]);
    ends_finish(e);
    return reversed;
}
static void test_late_completions_of_two_pairs_change_places(void **state)
{
    (void)state;
    assert_int_equal(count_reversed_completions(0), 0);
    assert_in_range(count_reversed_completions(500000), 1, 19);
}

/* ---- posting ---- */
static void test_inline_bytes_are_copied_at_once(void **state)
{
    (void)state;
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    unsigned char mine[64];
    memset(mine, 9, sizeof mine);
    /* Inline bytes need no key. */
    struct ibv_sge sge = { (uintptr_t)mine, sizeof mine, 0 };
    struct ibv_send_wr wr = request(1, IBV_WR_RDMA_WRITE, &sge, &e[1], 0);
    wr.send_flags |= IBV_SEND_INLINE;
    fake_set_faults(&(struct fake_faults){ .delay = 1000000, .delay_most_us = 3000 });
    assert_int_equal(post(e[0].qp, &wr), 0);
    memset(mine, 1, sizeof mine);
    assert_int_equal(completion(e[0].cq).status, IBV_WC_SUCCESS);
    assert_int_equal(e[1].memory[0], 9);
    assert_int_equal(e[1].memory[63], 9);
    assert_int_equal(fake_count(FAKE_INLINED), 1);
    /* A queue pair of end_pair takes at most 64 inline bytes. */
    unsigned char more[65] = { 0 };
    sge = (struct ibv_sge){ (uintptr_t)more, sizeof more, 0 };
    assert_int_equal(post(e[0].qp, &wr), EINVAL);
    ends_finish(e);
}
static void test_a_list_is_one_doorbell(void **state)
{
    (void)state;
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    struct ibv_send_wr wrs[3], *bad;
    for (int i = 0; i < 3; i++) {
        wrs[i] = request((uint64_t)i, i ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, NULL, &e[1], 0);
        wrs[i].next = i < 2 ? &wrs[i + 1] : NULL;
    }
    assert_int_equal(post(e[0].qp, wrs), 0);
    assert_int_equal(fake_count(FAKE_DOORBELLS), 1);
    assert_int_equal(fake_count(FAKE_REQUESTS), 3);
    assert_int_equal(fake_count(FAKE_WRITES), 2);
    assert_int_equal(fake_count(FAKE_READS), 1);
    for (uint64_t i = 0; i < 3; i++) assert_int_equal(completion(e[0].cq).wr_id, i);
    assert_int_equal(fake_count(FAKE_COMPLETIONS), 3);
    /* The pair allows 4 pieces: this request is refused, and the one before it is posted. */
    wrs[1].num_sge = 5;
    assert_int_equal(ibv_post_send(e[0].qp, wrs, &bad), EINVAL);
    assert_ptr_equal(bad, &wrs[1]);
    assert_int_equal(completion(e[0].cq).wr_id, 0);
    no_completion(e[0].cq);
    ends_finish(e);
}
static void test_unsignaled_requests_hold_their_room_until_a_poll(void **state)
{
    (void)state;
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    struct ibv_send_wr wr = request(1, IBV_WR_RDMA_WRITE, NULL, &e[1], 0), *bad = NULL;
    wr.send_flags = 0;
    for (int i = 0; i < END_WORKS - 1; i++) assert_int_equal(post(e[0].qp, &wr), 0);
    /* All are carried out, but no completion shows it. */
    no_completion(e[0].cq);
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr_id = 2;
    assert_int_equal(post(e[0].qp, &wr), 0);
    assert_int_equal(ibv_post_send(e[0].qp, &wr, &bad), ENOMEM);
    assert_ptr_equal(bad, &wr);
    assert_int_equal(fake_count(FAKE_SIGNALED), 1);
    assert_int_equal(completion(e[0].cq).wr_id, 2);
    for (int i = 0; i < END_WORKS; i++) assert_int_equal(post(e[0].qp, &wr), 0);
    for (int i = 0; i < END_WORKS; i++) completion(e[0].cq);
    ends_finish(e);
}
static void test_a_full_receive_queue_refuses_receives(void **state)
{
    (void)state;
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    for (uint64_t i = 0; i < END_WORKS; i++) assert_int_equal(post_receive(e[1].qp, i, NULL), 0);
    assert_int_equal(post_receive(e[1].qp, 99, NULL), ENOMEM);
    struct ibv_send_wr wr = request(1, IBV_WR_SEND, NULL, &e[1], 0);
    assert_int_equal(post(e[0].qp, &wr), 0);
    completion(e[0].cq);
    completion(e[1].cq);
    assert_int_equal(post_receive(e[1].qp, 99, NULL), 0);
    assert_int_equal(fake_count(FAKE_RECEIVES), END_WORKS + 1);
    ends_finish(e);
}
static void test_calls_fail_as_ordered(void **state)
{
    (void)state;
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    fake_fail_call(FAKE_REG_MR, 1, ENOMEM);
    struct ibv_mr *first = ibv_reg_mr(e[0].pd, e[0].memory, 10, IBV_ACCESS_LOCAL_WRITE);
    assert_non_null(first);
    assert_null(ibv_reg_mr(e[0].pd, e[0].memory, 10, IBV_ACCESS_LOCAL_WRITE));
    assert_int_equal(errno, ENOMEM);
    ibv_dereg_mr(first);
    fake_fail_call(FAKE_CREATE_QP, 0, EAGAIN);
    struct ibv_qp_init_attr a = { .send_cq = e[0].cq, .recv_cq = e[0].cq, .qp_type = IBV_QPT_RC };
    assert_null(ibv_create_qp(e[0].pd, &a));
    assert_int_equal(errno, EAGAIN);
    fake_fail_call(FAKE_POST_SEND, 0, ENOMEM);
    struct ibv_send_wr wr = request(1, IBV_WR_RDMA_WRITE, NULL, &e[1], 0);
    assert_int_equal(post(e[0].qp, &wr), ENOMEM);
    assert_int_equal(post(e[0].qp, &wr), 0);
    completion(e[0].cq);
    ends_finish(e);
}

/* ---- memory of a device ---- */
static void test_a_peer_writes_into_a_registered_dmabuf(void **state)
{
    (void)state;
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    int descriptor = memfd_create("device memory", MFD_CLOEXEC);
    assert_int_equal(ftruncate(descriptor, 8192), 0);
    unsigned char *seen = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    struct ibv_mr *mr = ibv_reg_dmabuf_mr(e[1].pd, 4096, 4096, 1 << 20, descriptor, END_ACCESS);
    assert_non_null(mr);
    end_fill(&e[0], 0, 16, 8);
    struct ibv_sge sge = sge_of(&e[0], 0, 16);
    struct ibv_send_wr wr = request(1, IBV_WR_RDMA_WRITE, &sge, &e[1], 0);
    wr.wr.rdma.remote_addr = (1 << 20) + 8;
    wr.wr.rdma.rkey = mr->rkey;
    assert_int_equal(post(e[0].qp, &wr), 0);
    assert_int_equal(completion(e[0].cq).status, IBV_WC_SUCCESS);
    assert_memory_equal(seen + 4096 + 8, e[0].memory, 16);
    assert_int_equal(ibv_dereg_mr(mr), 0);
    munmap(seen, 8192);
    close(descriptor);
    ends_finish(e);
}

/* ---- the lives of objects ---- */
static void test_objects_in_use_cannot_be_destroyed(void **state)
{
    (void)state;
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    assert_int_equal(fake_alive(FAKE_QUEUE_PAIR), 2);
    assert_int_equal(fake_alive(FAKE_REGION), 2);
    assert_int_equal(fake_pinned_bytes(), 2 * END_BYTES);
    assert_int_equal(fake_left(), 12);
    assert_int_equal(ibv_close_device(e[0].context), EBUSY);
    assert_int_equal(ibv_dealloc_pd(e[0].pd), EBUSY);
    assert_int_equal(ibv_destroy_cq(e[0].cq), EBUSY);
    assert_int_equal(ibv_destroy_comp_channel(e[0].channel), EBUSY);
    ends_finish(e);
}
unit_function test_fake;
int test_fake(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_every_symbol_has_its_version, fake_begin),
        cmocka_unit_test_setup(test_devices_and_addresses, fake_begin),
        cmocka_unit_test_setup(test_a_write_reaches_the_peer_without_its_help, fake_begin),
        cmocka_unit_test_setup(test_a_write_with_immediate_uses_up_a_receive, fake_begin),
        cmocka_unit_test_setup(test_a_send_is_scattered_into_a_receive, fake_begin),
        cmocka_unit_test_setup(test_a_read_fetches, fake_begin),
        cmocka_unit_test_setup(test_a_pair_may_be_connected_with_itself, fake_begin),
        cmocka_unit_test_setup(test_order_within_a_pair, fake_begin),
        cmocka_unit_test_setup(test_late_completions_of_two_pairs_change_places, fake_begin),
        cmocka_unit_test_setup(test_inline_bytes_are_copied_at_once, fake_begin),
        cmocka_unit_test_setup(test_a_list_is_one_doorbell, fake_begin),
        cmocka_unit_test_setup(test_unsignaled_requests_hold_their_room_until_a_poll, fake_begin),
        cmocka_unit_test_setup(test_a_full_receive_queue_refuses_receives, fake_begin),
        cmocka_unit_test_setup(test_calls_fail_as_ordered, fake_begin),
        cmocka_unit_test_setup(test_a_peer_writes_into_a_registered_dmabuf, fake_begin),
        cmocka_unit_test_setup(test_objects_in_use_cannot_be_destroyed, fake_begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
