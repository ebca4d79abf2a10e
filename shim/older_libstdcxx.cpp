/* The functions that the headers of gcc 12 call and that the libstdc++ of gcc 8 lacks. Wheels for glibc 2.28 must run
 * with the libstdc++ of gcc 8. script/wheel links this file into the extensions. The functions of this file are hidden,
 * so a newer libstdc++ never calls them in place of its own. */
#include <condition_variable>
#include <exception>
#include <new>
#include <pthread.h>
#include <sstream>

template std::basic_stringstream<char>::basic_stringstream();
template std::basic_ostringstream<char>::basic_ostringstream();
template std::string std::basic_stringbuf<char>::str() const &;
template std::string std::basic_stringbuf<char>::str() &&;

void std::__throw_bad_array_new_length() { throw std::bad_array_new_length(); }

void std::condition_variable::wait(std::unique_lock<std::mutex> &lock)
{
    pthread_cond_wait(native_handle(), lock.mutex()->native_handle());
}

/* The copy constructor and the destructor of exception_ptr, which count references and are in every libstdc++. The two
 * functions below are inline in older headers, so an older libstdc++ lacks them. */
extern "C" void exception_ptr_copy(void *copy,
    const void *original) __asm__("_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
extern "C" void exception_ptr_destroy(void *pointer) __asm__("_ZNSt15__exception_ptr13exception_ptrD1Ev");

void std::__exception_ptr::exception_ptr::_M_addref() noexcept
{
    void *copy;
    exception_ptr_copy(&copy, this);
}

void std::__exception_ptr::exception_ptr::_M_release() noexcept { exception_ptr_destroy(this); }

__asm__(".hidden _ZNSt7__cxx1118basic_stringstreamIcSt11char_traitsIcESaIcEEC1Ev\n"
        ".hidden _ZNSt7__cxx1119basic_ostringstreamIcSt11char_traitsIcESaIcEEC1Ev\n"
        ".hidden _ZNKRSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv\n"
        ".hidden _ZNOSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv\n"
        ".hidden _ZSt28__throw_bad_array_new_lengthv\n"
        ".hidden _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE\n"
        ".hidden _ZNSt15__exception_ptr13exception_ptr9_M_addrefEv\n"
        ".hidden _ZNSt15__exception_ptr13exception_ptr10_M_releaseEv\n");
