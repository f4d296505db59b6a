// What an exception means to whoever started the program.
#pragma once

#include <string>

namespace ghostshard::fsdp {

struct Failure {
  std::string sentence;  // without a stack trace
  // std::invalid_argument, c10::ValueError, or a path that std::filesystem was given and that cannot be followed or may
  // not be used: a link that leads to itself, a file where a folder should be, a name that is too long.
  bool callers_mistake = false;
};

// Of the exception that is being handled; only within a catch block.
Failure current_failure();

}  // namespace ghostshard::fsdp
