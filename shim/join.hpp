/* Joining a group through torch's store. */
#pragma once
#include "shim/communicator.hpp"
#include <chrono>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace tutti {

struct Options;

/* Joins the group, and returns when all ranks have joined. `timeout` limits joining, and options.timeout limits the
 * operations. Error texts name the `group` and, after a timeout, the missing ranks. */
c10::intrusive_ptr<Communicator> communicator_join(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
    const std::string &group, const Options &options, std::chrono::milliseconds timeout);
/* Throws ValueError if options.algorithm has an unknown algorithm. Local: the core checks it in a group of one rank. */
void options_check_algorithms(const Options &options);

} // namespace tutti
