// The text of an exception for a message.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace ghostshard::fsdp {

// The message of an exception, without the stack trace that c10::Error carries.
inline std::string reason_of(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  return c10_error != nullptr ? c10_error->what_without_backtrace() : error.what();
}

}  // namespace ghostshard::fsdp
