/* The module torch_tutti._C. Its file is named after its torch: _C_2_13 for torch 2.13. Python must have imported torch
 * before it imports this module. */
#include "shim/checks.hpp"
#include "shim/futures.hpp"
#include "shim/memory.hpp"
#include "shim/process_group.hpp"
#include "shim/signals.hpp"
#include <c10/util/ScopeExit.h>
#include <pybind11/chrono.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/control_plane/Handlers.hpp>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

namespace py = pybind11;
using namespace py::literals;
using tutti::Options;
using tutti::ProcessGroupTutti;

/* Returns a copy for another group. Whether the group was split off or merged is no choice of the program. */
static c10::intrusive_ptr<Options> options_copy(const Options &options)
{
    auto copy = c10::make_intrusive<Options>(options);
    copy->is_alone = false;
    copy->merged_size = 0;
    return copy;
}
/* Returns kUnsetTimeout for None. Throws ValueError below a millisecond. */
static std::chrono::milliseconds timeout_from_python(const std::optional<std::chrono::milliseconds> &timeout)
{
    if (timeout && timeout->count() <= 0) throw py::value_error("Options: the timeout must be at least a millisecond");
    return timeout.value_or(c10d::kUnsetTimeout);
}

/* Returns the value as Python prints it. */
static const char *bool_to_python(bool value) { return value ? "True" : "False"; }
/* Throws TypeError if there is an unknown option. */
static void options_refuse_unknown(const py::kwargs &unknown)
{
    for (auto [name, value] : unknown)
        throw py::type_error("Options: there is no option \"" + name.cast<std::string>()
            + "\"; the options are algorithm, timeout, blocking_futures and enable_reconfigure");
}

static void options_class_bind(py::module_ &module)
{
    py::class_<Options, c10d::Backend::Options, c10::intrusive_ptr<Options>>(module, "Options",
        "Options of one group, for the pg_options of init_process_group and new_group.\n\n"
        "algorithm: comma-separated choices such as \"allreduce=ring,broadcast=chain\"; tutti chooses for the other "
        "collectives.\n"
        "timeout: timedelta for joining and for every operation; default: the group's.\n"
        "enable_reconfigure: the group has no members before its first reconfigure. From torch 2.14 on,\n"
        "init_process_group(..., enable_reconfigure=True) sets it.\n"
        "blocking_futures: get_future() returns when the operation is finished, so that callbacks run in the thread "
        "that adds\nthem, in the order of the program, as with NCCL. Meant for callbacks that communicate (PowerSGD "
        "with several buckets);\nit costs overlap.\n"
        "An unknown algorithm raises ValueError when the group is made.")
        .def(py::init([](std::string algorithm, std::optional<std::chrono::milliseconds> timeout, bool blocking,
                          bool enable_reconfigure, const py::kwargs &unknown) {
            options_refuse_unknown(unknown);
            auto options = c10::make_intrusive<Options>(std::move(algorithm), timeout_from_python(timeout));
            options->blocking_futures = blocking;
            options->enable_reconfigure = enable_reconfigure;
            return options;
        }),
            py::arg("algorithm") = "", py::arg("timeout") = py::none(), py::arg("blocking_futures") = false,
            py::arg("enable_reconfigure") = false)
        .def_readwrite("algorithm", &Options::algorithm)
        .def_readwrite("blocking_futures", &Options::blocking_futures)
        .def_readwrite("enable_reconfigure", &Options::enable_reconfigure)
        .def_property(
            "timeout",
            [](const Options &o) {
                return o.timeout == c10d::kUnsetTimeout ? std::nullopt : std::make_optional(o.timeout);
            },
            [](Options &o, std::optional<std::chrono::milliseconds> timeout) {
                o.timeout = timeout_from_python(timeout);
            })
        .def("__copy__", &options_copy)
        .def(
            "__deepcopy__", [](const Options &options, const py::dict &) { return options_copy(options); },
            py::arg("memo"))
        .def("__repr__", [](const Options &o) {
            std::string limit = o.timeout == c10d::kUnsetTimeout ? "None" : std::to_string(o.timeout.count()) + " ms";
            return c10::str("Options(algorithm=\"", o.algorithm, "\", timeout=", limit,
                ", blocking_futures=", bool_to_python(o.blocking_futures),
                ", enable_reconfigure=", bool_to_python(o.enable_reconfigure), ")");
        });
}
static void group_class_bind(py::module_ &module)
{
    using released = py::call_guard<py::gil_scoped_release>;
    py::class_<ProcessGroupTutti, c10d::Backend, c10::intrusive_ptr<ProcessGroupTutti>>(module, "ProcessGroupTutti",
        "One rank's membership of a group, made by torch.distributed.init_process_group(\"tutti\") and new_group. The "
        "constructor\nreturns when all ranks have joined; if they do not join in time, it raises TimeoutError, which "
        "names the missing ranks.")
        .def(py::init<const c10::intrusive_ptr<c10d::Store> &, int, int, std::chrono::milliseconds, const std::string &,
                 const c10::intrusive_ptr<Options> &>(),
            py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout") = kBackendDefaultTimeout,
            py::arg("group") = "", py::arg("options") = py::none(), released())
        .def_property_readonly("options", &ProcessGroupTutti::options)
        .def("_set_default_timeout", &ProcessGroupTutti::setTimeout, py::arg("timeout"), released())
        .def("_drop_coalescing", &ProcessGroupTutti::drop_coalescing)
        /* Torch 2.15 has the first two functions for all backends. */
        .def("_start_time_estimate", &ProcessGroupTutti::startTimeEstimate)
        .def("_end_time_estimate", &ProcessGroupTutti::endTimeEstimate)
        .def("_drop_time_estimate", &ProcessGroupTutti::drop_time_estimate)
        .def_property_readonly("_communicator", &ProcessGroupTutti::address)
        .def("_stream", &ProcessGroupTutti::stream, py::arg("device"))
        .def("_reconfigure_handle", &ProcessGroupTutti::reconfigure_handle, released())
        .def(
            "_change_members",
            [](ProcessGroupTutti &group, int64_t uuid, std::vector<std::string> handles, bool ordered,
                std::optional<std::chrono::milliseconds> timeout) {
                return group.change_members({ uuid, std::move(handles), ordered, timeout });
            },
            py::arg("uuid"), py::arg("handles"), py::arg("ordered"), py::arg("timeout").none(true), released())
        .def_property_readonly("_membership", &ProcessGroupTutti::membership)
        .def_property_readonly("_store", &ProcessGroupTutti::store)
        .def("_begin_part", &ProcessGroupTutti::begin_part)
        .def("_adopt_part", &ProcessGroupTutti::adopt_part, py::arg("part"), py::arg("at"), released())
        /* Torch calls this when a group is split, on the ranks that stay outside the new group. */
        .def("perform_nocolor_split", [](ProcessGroupTutti &, const py::object &) {}, py::arg("device"));
}

/* ---- calls ---- */
/* True if the group has hooks that torch calls around each operation, such as the hooks of TORCH_DIST_NAN_CHECK and of
 * torch's flight recorder. */
static bool group_has_hooks(const c10d::ProcessGroup &group)
{
#ifdef C10D_BACKEND_HAS_HOOKS
    struct Access : c10d::ProcessGroup {
        static bool has_hooks(const c10d::ProcessGroup &of)
        {
            return !(of.*&Access::preHooks_).empty() || !(of.*&Access::postHooks_).empty();
        }
    };
    return Access::has_hooks(group);
#else
    return static_cast<void>(group), false;
#endif
}
static void call_functions_bind(py::module_ &module)
{
    module.def(
        "_options_open",
        [](uint64_t block, std::string algorithm, const std::optional<std::chrono::milliseconds> &timeout,
            const std::string &tag) {
            tutti::call_options_open_block(block,
                { std::move(algorithm), timeout.value_or(c10d::kUnsetTimeout), tutti::text_keep(tag) });
        },
        py::arg("block"), py::arg("algorithm"), py::arg("timeout"), py::arg("tag"));
    module.def("_options_close", &tutti::call_options_close_block, py::arg("block"));
    /* Runs a blocking all-reduce, without a Work if that is possible. */
    module.def(
        "_all_reduce",
        [](const at::Tensor &tensor, const c10d::ReduceOp &op, const c10::intrusive_ptr<c10d::ProcessGroup> &group) {
            auto backend = group->getBackend(tensor.device().type());
            auto *ours = dynamic_cast<ProcessGroupTutti *>(backend.get());
            if (ours && !group_has_hooks(*group) && ours->allreduce_directly(tensor, op)) return;
            std::vector<at::Tensor> tensors{ tensor };
            c10d::AllreduceOptions options;
            options.reduceOp = op;
            options.asyncOp = false;
            group->allreduce(tensors, options)->wait();
        },
        py::arg("tensor"), py::arg("op"), py::arg("group").none(false), py::call_guard<py::gil_scoped_release>());
    using Maybe = std::optional<at::Tensor>;
    /* Runs allreduce_norm. Returns false, without any effect, if the group belongs to another backend. */
    module.def(
        "_all_reduce_norm",
        [](const at::Tensor &tensor, const Maybe &weight, const Maybe &bias, const Maybe &residual, double epsilon,
            bool centred, bool own_rows, const c10::intrusive_ptr<c10d::ProcessGroup> &group) {
            auto backend = group->getBackend(tensor.device().type());
            auto *ours = dynamic_cast<ProcessGroupTutti *>(backend.get());
            if (!ours) return false;
            auto or_none = [](const Maybe &given) { return given ? *given : at::Tensor(); };
            ours->allreduce_norm(tensor,
                { or_none(weight), or_none(bias), or_none(residual), epsilon, centred, own_rows });
            return true;
        },
        py::arg("tensor"), py::arg("weight").none(true), py::arg("bias").none(true), py::arg("residual").none(true),
        py::arg("eps"), py::arg("centred"), py::arg("own_rows"), py::arg("group").none(false),
        py::call_guard<py::gil_scoped_release>());
}

/* ---- the flight recorder ---- */
/* Prints the error `text` and writes the recorded operations to a file, both in Python. A thread calls this before it
 * raises the error. */
static void failure_report_to_python(const std::string &text)
{
    if (!Py_IsInitialized()) return;
    py::gil_scoped_acquire gil;
    try {
        py::module_::import("torch_tutti._recorder").attr("dump_after_failure")(text);
    } catch (const std::exception &) {
        /* The caller raises the original error next, which matters more. */
    }
}
/* Returns the frames of each record's Python stack; the list of a record without a stack is empty. One call of torch
 * symbolizes all stacks, because they share most frames. To name frames, torch looks for compiled code in
 * torch._inductor, and imports this module if necessary. The import takes seconds, and a failed rank may be killed at
 * any moment, so a placeholder hides the module. The GIL is held meanwhile. */
static std::vector<py::list> records_symbolize_frames(const std::vector<tutti::Record> &records)
{
    std::vector<py::list> all(records.size());
    std::vector<torch::CapturedTraceback *> stacks;
    for (const auto &record : records)
        if (record.stack) stacks.push_back(record.stack.get());
    if (stacks.empty()) return all;
    py::dict modules = py::module_::import("torch").attr("__dict__");
    bool absent = !modules.contains("_inductor");
    if (absent) modules["_inductor"] = py::none();
    auto restore = c10::make_scope_exit([&] {
        if (absent) modules.attr("pop")("_inductor", py::none());
    });
    auto symbolized = torch::symbolize(stacks);
    std::vector<py::dict> frames;
    for (const auto &frame : symbolized.all_frames)
        frames.emplace_back("name"_a = frame.funcname, "filename"_a = frame.filename, "line"_a = frame.lineno);
    auto stack = symbolized.tracebacks.begin();
    for (size_t i = 0; i < records.size(); i++) {
        if (!records[i].stack) continue;
        for (uint64_t frame : *stack++) all[i].append(frames.at(frame));
    }
    return all;
}
/* Returns the line of the program in a Python stack, or "". */
static std::string stack_get_place_in_python(const std::shared_ptr<torch::CapturedTraceback> &stack)
{
    if (!Py_IsInitialized()) return "";
    py::gil_scoped_acquire gil;
    try {
        std::vector<tutti::Record> records(1);
        records[0].stack = stack;
        py::object describe = py::module_::import("torch_tutti._program_line").attr("describe");
        return describe(records_symbolize_frames(records)[0]).cast<std::string>();
    } catch (const std::exception &) {
        /* The caller raises an error next, which matters more than its line. */
        return "";
    }
}
/* Returns a list of the groups, and a list of the operations among the newest `max_records` records. Both are lists of
 * dicts. A field that torch's format also has is named as there. */
static py::tuple recording_to_python(size_t max_records)
{
    tutti::Recording recording;
    {
        py::gil_scoped_release released;
        recording = tutti::recorder::recording_copy_newest(max_records);
    }
    py::list groups, operations;
    for (const tutti::RecordedGroup &group : recording.groups)
        groups.append(py::dict("name"_a = group.name, "desc"_a = group.description, "ranks"_a = group.members,
            "collectives"_a = group.collectives, "completed"_a = group.completed));
    std::vector<py::list> frames = records_symbolize_frames(recording.records);
    for (size_t i = 0; i < frames.size(); i++) {
        const tutti::Record &record = recording.records[i];
        operations.append(py::dict("record_id"_a = record.id - 1, "pg_id"_a = record.group,
            "collective_seq_id"_a = record.numbers.collective, "p2p_seq_id"_a = record.numbers.message,
            "op_id"_a = record.operation, "profiling_name"_a = record.name, "time_created_ns"_a = record.began_ns,
            "ended_ns"_a = record.ended_ns, "input_sizes"_a = record.inputs.sizes,
            "input_dtypes"_a = record.inputs.types, "output_sizes"_a = record.outputs.sizes,
            "output_dtypes"_a = record.outputs.types, "timeout_ms"_a = record.timeout_ms, "tag"_a = record.tag,
            "is_p2p"_a = record.is_message, "status"_a = static_cast<int>(record.outcome), "failure"_a = record.text,
            "frames"_a = frames[i]));
    }
    return py::make_tuple(groups, operations);
}
static void recorder_functions_bind(py::module_ &module)
{
    module.def(
        "_record",
        [](size_t capacity, bool stacks) {
            tutti::recorder::recording_start(capacity, stacks, &failure_report_to_python, &stack_get_place_in_python);
        },
        py::arg("capacity"), py::arg("stacks"), py::call_guard<py::gil_scoped_release>(),
        "Switches the flight recorder on for groups that are made later. A second call has no effect.");
    module.def(
        "_check_results",
        [](bool warns) { tutti::check_mode_set(warns ? tutti::CheckMode::warn : tutti::CheckMode::raise); },
        py::arg("warns"), "Switches the checks of TUTTI_DEBUG on for groups that are made later.");
    module.def("_own_rank", &tutti::recorder::rank_get);
    module.def("_set_own_rank", &tutti::recorder::rank_set, py::arg("rank"));
    module.def("_recorded", &recording_to_python, py::arg("most"),
        "Returns the groups and at most this many of the recorded operations; _recorder.py brings them into torch's "
        "format.");
}

/* ---- torch's debug server ---- */
/* Answers a request for the page with this name by torch_tutti._debug_server. */
static void page_answer(const std::string &name, c10d::control_plane::Response &response)
{
    int status = 503;
    std::string body;
    if (Py_IsInitialized()) {
        py::gil_scoped_acquire gil;
        try {
            py::object page = py::module_::import("torch_tutti._debug_server").attr("page")(name);
            std::tie(status, body) = page.cast<std::pair<int, std::string>>();
        } catch (const std::exception &) {
            /* The interpreter is ending, so the status stays 503. */
        }
    }
    response.setContent(std::move(body), "application/json");
    response.setStatus(status);
}
/* Adds the pages to the worker server of this process. The functions hold no object of Python, because torch destroys
 * them after the interpreter has ended. */
static void pages_register(const std::vector<std::string> &names)
{
    using namespace c10d::control_plane;
    for (const std::string &name : names)
        registerHandler(name, [name](const Request &, Response &response) { page_answer(name, response); });
}

static void memory_functions_bind(py::module_ &module)
{
    module.def(
        "_shared_empty",
        [](const std::vector<int64_t> &sizes, at::ScalarType dtype) {
            return tutti::shared_tensor_allocate(sizes, dtype);
        },
        py::arg("sizes"), py::arg("dtype"));
    py::class_<tutti::SharedBlock>(module, "shared_tensors",
        "Context manager: every CPU tensor that this thread allocates in the block lies in shared memory, whichever\n"
        "code allocates it: factories, copies, results, a module's parameters, the buckets of\n"
        "DistributedDataParallel. Blocks may be nested; other threads are not affected. A block that is left on\n"
        "another thread ends on the thread that entered it.")
        .def(py::init())
        .def(
            "__enter__",
            [](tutti::SharedBlock &block) -> tutti::SharedBlock & {
                block.enter();
                return block;
            },
            py::return_value_policy::reference)
        .def("__exit__", [](tutti::SharedBlock &block, const py::args &) { block.exit(); });
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module)
{
    module.doc() = "The part of torch_tutti that talks to torch's C++ side.";
    module.attr("torch_version") = TORCH_VERSION;
    module.attr("tutti_version") = TUTTI_VERSION;
    module.attr("library_version") = tutti_get_version();
    py::module_::import("torch.distributed");
    /* Loaded now, so that an error finds its class even if the process has run out of memory or file descriptors. */
    py::module_::import("torch_tutti.exceptions");
    options_class_bind(module);
    group_class_bind(module);
    call_functions_bind(module);
    memory_functions_bind(module);
    recorder_functions_bind(module);
    module.def("_register_pages", &pages_register, py::arg("names"));
    module.def("_raise_interrupt", &tutti::signals_throw_raised,
        "Raises the exception of a signal handler that has ended the last wait of this thread in the core.");
    module.def(
        "_quiesce",
        [] {
            tutti::interpreter_begin_exit();
            tutti::Futures::quiesce();
        },
        py::call_guard<py::gil_scoped_release>(), "Stops completing futures; called when the interpreter exits.");
    tutti::signals_watch();
}
