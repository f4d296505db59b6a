#include "accountant/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <iostream>
#include <stdexcept>

namespace ghostshard::accountant {

void open_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() gives the lowest number that is free, which is this one.
    if (::open("/dev/null", O_RDWR) != stream)
      throw std::runtime_error("cannot open /dev/null in place of a closed stream");
  }
}

void finish_standard_output() {
  std::cout.flush();
  if (!std::cout) throw std::runtime_error("standard output cannot be written: is the disk full?");
}

}  // namespace ghostshard::accountant
