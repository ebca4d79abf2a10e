/* Joining a group through torch's store. */
#pragma once
#include "shim/communicator.hpp"
#include <chrono>
#include <functional>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace tutti {

struct Options;

/* Joins the group, and returns when all ranks have joined. `timeout` limits joining, and options.timeout limits the
 * operations. Error texts name the `group` and, after a timeout, the missing ranks. `check` (empty: none) runs again
 * and again while this thread waits. An exception of it ends the join here, and on the other ranks. */
c10::intrusive_ptr<Communicator> communicator_join(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
    const std::string &group, const Options &options, std::chrono::milliseconds timeout,
    const std::function<void()> &check = {});
/* Throws ValueError if options.algorithm has an unknown algorithm. Local: the core checks it in a group of one rank. */
void options_check_algorithms(const Options &options);

} // namespace tutti
