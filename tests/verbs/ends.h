/* For tests of the fake: connected ends with memory of their own, and short functions for what tests do with them. A
   function without a result fails the test if a call of the fake fails. The program links the fake. */
#pragma once
#include "tests/verbs/fake.h"
#include <stddef.h>

enum { END_BYTES = 1 << 20, END_WORKS = 64 };

struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    unsigned char *memory;
};
enum { END_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
/* The index of a device's GID for IPv4 and RoCE v2. */
enum { GID_INDEX = 3 };

/* The setup of a test: resets the fake. */
int fake_begin(void **state);
/* Creates all objects of an end on that device. Its queue pair is not connected, and has room for `works` requests and
   receives. */
void end_init(struct end *e, int device, enum ibv_qp_type type, uint32_t works);
void end_finish(struct end *e);
/* Creates two connected ends, one on each of the two devices. */
void ends_init(struct end ends[2], enum ibv_qp_type type);
/* Destroys both ends, and fails the test if any object is left in the fake. */
void ends_finish(struct end ends[2]);
/* Creates one more queue pair on the end. */
struct ibv_qp *end_pair(struct end *e, enum ibv_qp_type type, uint32_t works);

/* Returns the attributes of a connection to the queue pair `qp_num` on that device, for pair_receive and pair_send. */
struct ibv_qp_attr path_to(int device, uint32_t qp_num);
/* Moves a queue pair to INIT. */
void pair_init(struct ibv_qp *qp, unsigned access);
/* These move a queue pair to RTR and RTS with these attributes, and to a state without attributes. They return the
   result of ibv_modify_qp. */
int pair_receive(struct ibv_qp *qp, struct ibv_qp_attr attr);
int pair_send(struct ibv_qp *qp, struct ibv_qp_attr attr);
int pair_state(struct ibv_qp *qp, enum ibv_qp_state state);
/* Connects two queue pairs in state RESET. */
void pairs_connect(struct ibv_qp *a, int device_a, struct ibv_qp *b, int device_b);

/* Fills memory of the end with bytes that depend on `seed`. */
void end_fill(struct end *e, size_t offset, size_t bytes, unsigned seed);
/* Returns a piece of the end's memory. */
struct ibv_sge sge_of(const struct end *e, size_t offset, size_t bytes);
/* Returns a signalled request for `sge` (NULL: no bytes) and the peer's memory at `offset`. `id` is its wr_id and its
   immediate. */
struct ibv_send_wr request(uint64_t id, enum ibv_wr_opcode opcode, struct ibv_sge *sge, const struct end *peer,
    size_t offset);
/* These post requests and one receive (sge NULL: without memory). They return the result of the fake. */
int post(struct ibv_qp *qp, struct ibv_send_wr *wr);
int post_receive(struct ibv_qp *qp, uint64_t id, struct ibv_sge *sge);
/* Waits for the next completion, and returns it. */
struct ibv_wc completion(struct ibv_cq *cq);
/* Gives the wire 20 ms, and fails the test if the queue then has a completion. */
void no_completion(struct ibv_cq *cq);
/* Waits until the device has the queue pair in this state. */
void await_state(struct ibv_qp *qp, enum ibv_qp_state state);
/* Waits for the next asynchronous event, acknowledges it, and returns its type. */
enum ibv_event_type async_event(struct end *e);
/* Creates an address handle by which the end's datagrams reach the device. */
struct ibv_ah *handle_to(struct end *e, int device);
/* Creates two connected ends, and two more connected queue pairs, one on each end. The first of these reports to the
   completion queue that is returned, which has room for `works` completions. */
struct ibv_cq *small_queue_begin(struct end e[2], struct ibv_qp *qp[2], int works);
void small_queue_finish(struct end e[2], struct ibv_qp *qp[2], struct ibv_cq *small);
