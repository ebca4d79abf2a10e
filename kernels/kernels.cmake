file(GLOB kernel_sources CONFIGURE_DEPENDS kernels/*.c)
add_library(room_kernels OBJECT ${kernel_sources})
target_link_libraries(room_kernels PRIVATE tutti_flags)
