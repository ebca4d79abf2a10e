tutti_units(unit_kernels kernels kernels reduce rounding widened scale bounds lookup update packing norm blend)
