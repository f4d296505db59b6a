// Names of parameters by pattern, as a shell has them: * ? [abc].
#pragma once

#include <fnmatch.h>

#include <string>

namespace ghostshard::gpt2 {

inline bool matches(const std::string& glob, const std::string& name) {
  return ::fnmatch(glob.c_str(), name.c_str(), 0) == 0;
}

}  // namespace ghostshard::gpt2
