/* Figures of machines that were measured once, for tests that must not depend on the one they run on. */
#pragma once
#include "backend/model/machine.h"

/* Two virtual cores of a Zen 4 EPYC, 1 MiB of L2 each; they share a third-level cache, or do not. */
static const struct machine near_cores = {
    .l2 = 1 << 20,
    .last = 32 << 20,
    .line = 33,
    .near = 0.018,
    .far = 0.021,
    .add = 0.009,
    .slot_write = 0.064,
    .slot_read = 0.085,
    .lost_write = 0.03,
    .lost_read = 0.03,
    .tile = 300,
    .pause = 25,
    .yield = 540,
    .hand_over = 1420,
    .sleep = 17500,
    .message = 15000,
    .announced = 45000,
    .wire = 0.32,
};
static const struct machine far_cores = {
    .l2 = 1 << 20,
    .last = 32 << 20,
    .line = 130,
    .near = 0.018,
    .far = 0.021,
    .add = 0.009,
    .slot_write = 0.031,
    .slot_read = 0.15,
    .lost_write = 0.031,
    .lost_read = 0.15,
    .tile = 150,
    .pause = 25,
    .yield = 540,
    .hand_over = 1420,
    .sleep = 17500,
    .message = 15000,
    .announced = 45000,
    .wire = 0.32,
};
