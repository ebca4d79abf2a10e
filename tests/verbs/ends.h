/* For tests of the fake: two ends that are connected, each with memory of its own, and short words for what is done
   with them. What fails fails the test. Link the fake, or fill in its functions otherwise. */
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
    struct ibv_qp_attr attr;                            /* what it is connected with */
};
enum { END_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
enum { GID_INDEX = 3 };                                 /* IPv4, RoCE v2 */

/* An end on that device: everything but a connection. `works` is the size of its queues. */
void end_init(struct end *e, int device, enum ibv_qp_type type, uint32_t works);
void end_finish(struct end *e);
/* Two ends on the two devices, connected. */
void ends_init(struct end ends[2], enum ibv_qp_type type);
void ends_finish(struct end ends[2]);                   /* and nothing is left */
struct ibv_qp *end_pair(struct end *e, enum ibv_qp_type type, uint32_t works);         /* one more */

/* The attributes of a connection of `qp` to a pair on that device; change them before pair_receive and pair_send. */
struct ibv_qp_attr path_to(int device, uint32_t qp_num);
void pair_init(struct ibv_qp *qp, unsigned access);     /* to INIT */
int pair_receive(struct ibv_qp *qp, struct ibv_qp_attr attr);          /* to RTR; returns what ibv_modify_qp does */
int pair_send(struct ibv_qp *qp, struct ibv_qp_attr attr);             /* to RTS */
void pairs_connect(struct ibv_qp *a, int device_a, struct ibv_qp *b, int device_b);
int pair_state(struct ibv_qp *qp, enum ibv_qp_state state);            /* with nothing else */

struct ibv_sge sge_of(const struct end *e, size_t offset, size_t bytes);
struct ibv_send_wr request(uint64_t id, enum ibv_wr_opcode opcode, struct ibv_sge *sge, const struct end *peer,
    size_t offset);
int post(struct ibv_qp *qp, struct ibv_send_wr *wr);
int post_receive(struct ibv_qp *qp, uint64_t id, struct ibv_sge *sge);                 /* sge NULL: no memory */
struct ibv_wc completion(struct ibv_cq *cq);            /* the next one; waits for it */
void no_completion(struct ibv_cq *cq);                  /* although the wire had time */
void await_state(struct ibv_qp *qp, enum ibv_qp_state state);          /* of the device */
enum ibv_event_type async_event(struct end *e);         /* the next one, acknowledged */
struct ibv_ah *handle_to(struct end *e, int device);
/* A queue of so many completions, to which the first of two more pairs reports. */
struct ibv_cq *small_queue_begin(struct end e[2], struct ibv_qp *qp[2], int works);
void small_queue_finish(struct end e[2], struct ibv_qp *qp[2], struct ibv_cq *small);
