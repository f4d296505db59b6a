#include "accountant/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
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

std::string one_line(std::string_view message) {
  std::string line;
  for (size_t at = 0; at < message.size(); ++at) {
    auto byte = static_cast<unsigned char>(message[at]);
    // UTF-8 writes U+0080 to U+009F as C2 and the number.
    const bool c1 =
        byte == 0xC2 && at + 1 < message.size() && static_cast<unsigned char>(message[at + 1]) - 0x80U < 0x20U;
    if (c1) byte = static_cast<unsigned char>(message[++at]);
    if (byte == '\n') {
      line += "\\n";
    } else if (c1 || byte < 0x20 || byte == 0x7F) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\x%02x", byte);
      line += escape;
    } else {
      line += static_cast<char>(byte);
    }
  }
  return line;
}

}  // namespace ghostshard::accountant
