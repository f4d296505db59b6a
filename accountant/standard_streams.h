// What a program does with its standard streams before it opens a file, and before it ends.
#pragma once

#include <string>
#include <string_view>

namespace ghostshard::accountant {

// Gives each of standard input, output and error that the caller has closed to /dev/null. Otherwise the next file that
// is opened, such as a ledger, would have its number, and what is printed would be written into that file. Throws
// std::runtime_error if /dev/null cannot be opened.
void open_standard_streams();

// Throws std::runtime_error if not all that was printed could be written, for example on a full disk: an exit status of
// 0 would be false.
void finish_standard_output();

// A message with escapes in place of control characters (C0, DEL and, in UTF-8, C1): a name that was typed may hold an
// end of line or a command to the terminal, and a message is one line.
std::string one_line(std::string_view message);

}  // namespace ghostshard::accountant
