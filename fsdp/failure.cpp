#include "fsdp/failure.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>

namespace ghostshard::fsdp {
namespace {

constexpr std::array kOfThePath = {
    std::errc::too_many_symbolic_link_levels,
    std::errc::filename_too_long,
    std::errc::not_a_directory,
    std::errc::is_a_directory,
    std::errc::permission_denied,
    std::errc::operation_not_permitted,
    std::errc::read_only_file_system,
};

Failure of_path(const std::filesystem::filesystem_error& error) {
  return {.sentence = error.path1().string() + " cannot be used: " + error.code().message(),
          .callers_mistake = std::any_of(kOfThePath.begin(), kOfThePath.end(),
                                         [&](std::errc reason) { return error.code() == reason; })};
}

}  // namespace

Failure current_failure() {
  try {
    throw;
  } catch (const std::invalid_argument& error) {
    return {.sentence = error.what(), .callers_mistake = true};
  } catch (const std::filesystem::filesystem_error& error) {
    return of_path(error);
  } catch (const c10::ValueError& error) {
    return {.sentence = error.what_without_backtrace(), .callers_mistake = true};
  } catch (const c10::Error& error) {
    return {.sentence = error.what_without_backtrace()};
  } catch (const std::bad_alloc&) {
    return {.sentence = "this machine's memory is not enough for that"};
  } catch (const std::exception& error) {
    return {.sentence = error.what()};
  }
}

}  // namespace ghostshard::fsdp
