/* Lets other threads run Python code while this one waits for other ranks, which may be among them. */
#pragma once
#include <optional>
#include <pybind11/gil.h>

namespace tutti {

/* Releases the GIL while this object exists. It has no effect on a thread that does not hold the GIL. */
class GilRelease {
  public:
    GilRelease()
    {
        if (PyGILState_Check()) released_.emplace();
    }

  private:
    std::optional<pybind11::gil_scoped_release> released_;
};

} // namespace tutti
