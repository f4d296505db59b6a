// A writer's line goes where the report will look for it, or nowhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "accountant/ledger.h"
#include "tests/accountant/ledger_fixture.h"

namespace ghostshard::accountant {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
namespace fs = std::filesystem;

struct Change {
  const char* name;
  std::function<void(const fs::path&)> make;
  const char* rule;
};

class LedgerUnderWay : public Ledger, public testing::WithParamInterface<Change> {};

TEST_P(LedgerUnderWay, IsNotWrittenToAfterAChange) {
  LedgerWriter writer = LedgerWriter::create(path_, header());
  writer.append(0, 0, kEvent);
  const std::string before = bytes();
  GetParam().make(path_);
  const auto append = [&] { writer.append(1, 0, kEvent); };
  EXPECT_THAT(append, ThrowsMessage<std::runtime_error>(HasSubstr(GetParam().rule)));
  EXPECT_THAT([&] { writer.begin_epoch(1, "another run", nlohmann::json::object()); },
              ThrowsMessage<std::runtime_error>(HasSubstr(GetParam().rule)));
  fs::remove(path_);
  set_bytes(before);
  EXPECT_EQ(read_ledger(path_).entries.size(), 1U);
}

INSTANTIATE_TEST_SUITE_P(
    All, LedgerUnderWay,
    testing::Values(
        Change{"Removed", [](const auto& path) { fs::remove(path); }, "it was removed, moved or replaced under way"},
        Change{"Moved", [](const auto& path) { fs::rename(path, path.string() + ".old"); },
               "removed, moved or replaced"},
        Change{"ReplacedByItsCopy",
               [](const auto& path) {
                 fs::copy_file(path, path.string() + ".copy");
                 fs::rename(path.string() + ".copy", path);
               },
               "removed, moved or replaced"},
        Change{"Cut", [](const auto& path) { fs::resize_file(path, fs::file_size(path) - 1); }, "changed under way"},
        Change{"Emptied", [](const auto& path) { fs::resize_file(path, 0); }, "bytes that its run wrote, it holds 0"},
        Change{"WrittenToByAnother", [](const auto& path) { std::ofstream(path, std::ios::app) << "x\n"; },
               "changed under way"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(Ledger, PutBackGoesOn) {
  LedgerWriter writer = LedgerWriter::create(path_, header());
  fs::rename(path_, folder_ / "elsewhere");
  EXPECT_THROW(writer.append(0, 0, kEvent), std::runtime_error);
  fs::rename(folder_ / "elsewhere", path_);
  writer.append(0, 0, kEvent);
  EXPECT_EQ(read_ledger(path_).entries.size(), 1U);
}

TEST_F(Ledger, OfARelativePathStaysWhereItWasWhenTheProcessMoves) {
  const fs::path here = fs::current_path();
  fs::current_path(folder_);
  {
    LedgerWriter writer = LedgerWriter::create("ledger.jsonl", header());
    fs::create_directory("below");
    fs::current_path("below");
    EXPECT_NO_THROW(writer.append(0, 0, kEvent));
  }
  fs::current_path(here);
  EXPECT_EQ(read_ledger(path_).entries.size(), 1U);
  for (const char* rest : {"", "{\"cut sho"}) {  // and of one that was mended
    std::ofstream(path_, std::ios::app | std::ios::binary) << rest;
    LedgerWriter again = LedgerWriter::reopen(path_);
    EXPECT_NO_THROW(again.append(1, again.entries(), kEvent));
    EXPECT_NO_THROW(again.append(2, again.entries(), kEvent));
  }
}

}  // namespace
}  // namespace ghostshard::accountant
