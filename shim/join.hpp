/* Joining a group through torch's store. */
#pragma once
#include "shim/communicator.hpp"
#include <chrono>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace tutti {

struct Options;

/* Joins the group, and returns when all ranks have joined. `timeout` limits joining. The timeout of the operations is
 * that of the options. Messages name the `group`. The error names the missing ranks. */
c10::intrusive_ptr<Communicator> communicator_join(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
    const std::string &group, const Options &options, std::chrono::milliseconds timeout);
/* Throws ValueError for an unknown algorithm, without a group. */
void options_check_algorithms(const Options &options);

} // namespace tutti
