// What a program does with its standard streams before it opens a file, and before it ends.
#pragma once

namespace ghostshard::accountant {

// Gives each of standard input, output and error that the caller has closed to /dev/null. Otherwise the next file that
// is opened, such as a ledger, would have its number, and what is printed would be written into that file. Throws
// std::runtime_error if /dev/null cannot be opened.
void open_standard_streams();

// Throws std::runtime_error if not all that was printed could be written, for example on a full disk: an exit status of
// 0 would be false.
void finish_standard_output();

}  // namespace ghostshard::accountant
