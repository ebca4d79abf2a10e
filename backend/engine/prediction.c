/* A prediction is the choice that the launcher would make for a call, with its cost. It comes from the same chooser.
   So the call runs as predicted unless a tuner changes it, and the first call of that size finds the choice already
   made. The chooser belongs to the driver, so the caller takes the role while a few plans are predicted. A prediction
   sends no messages. */
#include "backend/engine/prediction.h"

/* Returns true if the group is on one host, single copy is on, and this rank can read the tensors of the others. It
   assumes that the others can read as well. */
static bool prediction_can_read_peers(tutti_comm *comm)
{
    return !group_has_several_hosts(&comm->group) && comm->launcher.single_copy && tensors_can_read_peers(comm);
}
/* Predicts one call of `bytes` bytes by the cost model. `requested`: the algorithm, or NULL for the communicator's
   choice. */
static tutti_status prediction_fill(tutti_comm *comm, enum collective collective, const struct algorithm *requested,
    size_t bytes, tutti_prediction *out)
{
    struct question question = { .collective = collective,
        .algorithm = requested ? requested : atomic_load(&comm->chosen[collective]),
        .message_bytes = bytes,
        .placement = TENSORS_PRIVATE };
    struct choice choice;
    TRY(launch_predict_cost(comm, &question, prediction_can_read_peers(comm), &choice));
    out->algorithm = choice.algorithm->name;
    out->ns = choice.cost;
    out->tile_bytes = choice.tile_bytes;
    out->slots = choice.slots;
    out->candidate = chooser_considers_algorithm(&comm->launcher.chooser, choice.algorithm);
    return TUTTI_OK;
}
tutti_status prediction_make(tutti_comm *comm, enum collective collective, const struct algorithm *requested,
    size_t bytes, tutti_prediction *out)
{
    tutti_status status = TUTTI_OK;
    /* The communicator is not destroyed while a thread is inside. */
    atomic_fetch_add(&comm->submission.inside, 1);
    if (atomic_load(&comm->submission.closed)) {
        status = comm_get_failure(comm);
    } else {
        driver_acquire_role(comm);
        status = status_mark_refusal(prediction_fill(comm, collective, requested, bytes, out));
        driver_hand_over_role(comm);
    }
    atomic_fetch_sub(&comm->submission.inside, 1);
    return status;
}
