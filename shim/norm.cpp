/* The all-reduce that normalises the rows of its result, which torch lacks. It makes one call of the core. */
#include "shim/process_group.hpp"

namespace tutti {

namespace {
const char kTitle[] = "tutti:all_reduce_norm";
/* The member function of Footprint that checks a tensor or adds it to the footprint. */
using Take = Buffer (Footprint::*)(const at::Tensor &tensor, Role role);
/* The rows of the input: `count` rows of `columns` elements each. */
struct Rows {
    Buffer buffer;
    size_t count, columns;
};
} // namespace

/* Checks the input, takes it into the footprint by `take`, and returns its rows. */
static Rows norm_rows_from_tensor(Footprint &footprint, const at::Tensor &tensor, Take take)
{
    Buffer b = (footprint.*take)(tensor, { "input" });
    tensor_check_contiguous(footprint.call(), { "input" }, tensor);
    if (b.type != at::kFloat && b.type != at::kBFloat16 && b.type != at::kHalf)
        call_refuse(footprint.call(), "the input is ", type_get_name(b.type),
            "; only rows of float32, bfloat16 and float16 can be normalised");
    if (tensor.dim() == 0)
        call_refuse(footprint.call(), "the input has no rows: give a tensor of one dimension or more");
    auto columns = static_cast<size_t>(tensor.size(-1));
    return { b, columns ? b.count / columns : 0, columns };
}
/* Checks a weight, bias or residual, which must have `count` elements, and takes it into the footprint by `take`.
 * Returns its data, or NULL if the tensor is undefined. */
static void *norm_add_operand(Footprint &footprint, const at::Tensor &tensor, const char *role, const Rows &rows,
    Take take, size_t count)
{
    if (!tensor.defined()) return nullptr;
    Buffer b = (footprint.*take)(tensor, { role });
    tensor_check_contiguous(footprint.call(), { role }, tensor);
    buffers_check_same_type(footprint.call(), b, { role }, rows.buffer, { "input" });
    if (b.count != count)
        call_refuse(footprint.call(), "the ", role, " has sizes ", tensor.sizes(), ": it must have ", count,
            " elements, for ", count / rows.columns, " rows of ", rows.columns);
    /* A rank without own rows still passes a residual, so its empty tensor needs an address. */
    static char nothing;
    return b.data ? b.data : &nothing;
}
/* Fills the core's arguments `out` from torch's tensors. `read` takes a tensor that the operation reads, and `change`
 * one that it reads and writes. Returns the rows of the input. */
static Rows norm_fill_arguments(Footprint &footprint, const at::Tensor &tensor, const Norm &norm, int rank, int size,
    Take read, Take change, tutti_norm &out)
{
    Rows rows = norm_rows_from_tensor(footprint, tensor, change);
    size_t first = 0, count = rows.count;
    if (norm.own_rows) tutti_norm_rows(rows.count, size, rank, &first, &count);
    out.kind = norm.centred ? TUTTI_NORM_LAYER : TUTTI_NORM_RMS;
    out.epsilon = norm.epsilon;
    out.own_rows = norm.own_rows;
    /* The core refuses rows without columns. */
    if (!rows.columns) return rows;
    out.weight = norm_add_operand(footprint, norm.weight, "weight", rows, read, rows.columns);
    out.bias = norm_add_operand(footprint, norm.bias, "bias", rows, read, rows.columns);
    out.residual = norm_add_operand(footprint, norm.residual, "residual", rows, change, count * rows.columns);
    return rows;
}
void ProcessGroupTutti::allreduce_norm(const at::Tensor &tensor, const Norm &norm)
{
    Footprint footprint(kTitle + sizeof("tutti:") - 1);
    CallGuard guard = enter(footprint.call());
    tutti_norm arguments = TUTTI_NORM_INIT;
    bool directly = tensor.device().is_cpu() && !needs_work();
    Take read = directly ? &Footprint::check : &Footprint::input;
    Take change = directly ? &Footprint::check : &Footprint::update;
    Rows rows = norm_fill_arguments(footprint, tensor, norm, getRank(), getSize(), read, change, arguments);
    auto begin = [&](tutti_comm *comm, tutti_request *request) {
        char *data = rows.buffer.data;
        return tutti_all_reduce_norm(data, data, rows.count, rows.columns, rows.buffer.dtype, &arguments, comm,
            request);
    };
    if (directly && run_directly(begin)) return;
    launch({ kTitle, c10d::OpType::ALLREDUCE, false, c10d::kUnsetTimeout }, std::move(footprint), begin);
}

} // namespace tutti
